job "old" {
  resources = { cpu = 100 }
  datacenters {
    a = 1
  }
  group "g" {
    network = { port = "x" }
    count { }
    task "t" {
      driver = "raw_exec"
      resources = { cpu = 100 }
      service = [{ name = "x" }]
      name = "other"
      env "x" {}
      env {
        nested {}
      }
    }
    scaling "x" {}
    volume {}
  }
}
