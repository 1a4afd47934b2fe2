# Names that have others today.
job "renamed" {
  group "web" {
    network {
      mode = "bridge"
    }

    disconnect {
      stop_after = "90s"
    }

    service {
      name = "web"
      port = "8080"

      connect {
        sidecar_service {
          proxy {
            transparent_proxy {
              excluded_outbound_ports = [53, "5353"]
              excluded_outbound_cidrs = ["10.1.0.0/16"]
              exclude_uids            = [1000]
            }
          }
        }
      }
    }

    task "serve" {
      driver = "raw_exec"
      config {
        command = "serve"
      }
    }
  }
}
