job "connect-sidecar" {
  group "app" {
    service {
      name = "count-api"
      port = "9001"
      connect {
        sidecar_service {
          tags                      = ["proxy"]
          port                      = "proxy"
          disable_default_tcp_check = true
          meta {
            a = "b"
          }
          proxy {
            local_service_address = "127.0.0.1"
            local_service_port    = 9001
            config {
              envoy_stats_tags = ["x"]
            }
            upstreams {
              destination_name        = "db"
              destination_namespace   = "prod"
              destination_peer        = "peer"
              destination_partition   = "part"
              destination_type        = "service"
              datacenter              = "dc2"
              local_bind_address      = "127.0.0.1"
              local_bind_port         = 5432
              local_bind_socket_path  = "/tmp/s"
              local_bind_socket_mode  = "0600"
              config {
                connect_timeout_ms = 5000
              }
              mesh_gateway {
                mode = "local"
              }
            }
            upstreams {
              destination_name = "cache"
              local_bind_port  = 6379
            }
            expose {
              path {
                path            = "/metrics"
                protocol        = "http"
                local_path_port = 9001
                listener_port   = "metrics"
              }
            }
            transparent_proxy {
              uid                    = "101"
              outbound_port          = 15001
              exclude_inbound_ports  = ["8080", "admin"]
              exclude_outbound_ports = [443, 80]
              exclude_outbound_cidrs = ["10.0.0.0/8"]
              exclude_uids           = ["102"]
              no_dns                 = true
            }
          }
        }
        sidecar_task {
          name           = "envoy"
          driver         = "docker"
          user           = "1337"
          kill_timeout   = "5s"
          kill_signal    = "SIGTERM"
          shutdown_delay = "5s"
          config {
            image = "custom/envoy:${NOMAD_envoy_version}"
          }
          env {
            A = "b"
          }
          meta {
            c = "d"
          }
          logs {
            max_files = 2
          }
          resources {
            cpu    = 250
            memory = 128
          }
          volume_mount {
            volume      = "v"
            destination = "/v"
          }
        }
      }
    }
    service {
      name = "native"
      port = "api"
      connect {
        native = true
      }
    }

    task "main" {
      driver = "raw_exec"

      config {
        command = "true"
      }
    }
  }
}
