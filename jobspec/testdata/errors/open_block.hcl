job "open" {
  group "g" {
    network {
      port "http" {
    }
    task "t" {
      driver = "raw_exec"
    }
  }
}
