job "unit" {
  group "g" {
    count = "2x"
    task "t" {
      driver = "raw_exec"
      resources {
        memory = "64 MB"
        cpu    = "much"
      }
    }
  }
}
