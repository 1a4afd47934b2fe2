Hello ${name}: %{ for x in list }${x} %{ endfor }on ${NOMAD_ALLOC_ID}
