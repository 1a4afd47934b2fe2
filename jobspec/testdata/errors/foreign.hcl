job "x" {
  datacenters = [[ .datacenters | toJson ]]
  group "g" {
    count = [[ .count ]]
    [[- range $i := .tasks ]]
    task "t" {
      driver = "raw_exec"
    }
    [[ end ]]
    meta {
      matrix = jsonencode([[1, 2], [3]])
    }
  }
}
