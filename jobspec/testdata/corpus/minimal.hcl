job "minimal" {
  group "g" {
    task "t" {
      driver = "raw_exec"
    }
  }
}
