job "[[ .name ]]" {
  group "{{ env "X" }}" {
    task "t" {
      driver = "raw_exec"
    }
  }
}
