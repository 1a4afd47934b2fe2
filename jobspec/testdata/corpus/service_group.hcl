job "service-group" {
  group "app" {
    service {
      name    = "api"
      port    = "9090"
      address = "${attr.unique.platform.aws.public-hostname}"
      task    = "main"
      cluster = "default"
      kind    = "api-gateway"
      tagged_addresses {
        lan = "10.0.0.1"
      }
      weights {
        passing = 10
        warning = 1
      }
      check_restart {
        limit = 2
      }
      identity {
        name = "consul"
        aud  = ["consul.io"]
        ttl  = "1h"
      }
      check {
        type      = "tcp"
        task      = "main"
        expose    = true
        advertise = "10.1.1.1"
        interval  = "10s"
        timeout   = "2s"
      }
    }
    service {}

    task "main" {
      driver = "raw_exec"

      config {
        command = "true"
      }
    }
  }
}
