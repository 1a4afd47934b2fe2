job "spread" {
  spread {
    attribute = "${node.datacenter}"
    weight    = 100

    target "dc1" {
      percent = 70
    }
    target "dc2" {
      percent = 30
    }
  }
  spread {
    attribute = "${meta.rack}"
  }

  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "true"
      }
    }
  }
}
