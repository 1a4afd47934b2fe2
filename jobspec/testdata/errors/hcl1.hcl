job "old" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      resources = { cpu = 100 }
      service = [{ name = "x" }]
      env {
        discovery.type = "single"
      }
    }
  }
}
