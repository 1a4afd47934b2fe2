job "scaling" {
  group "app" {
    scaling {
      enabled = true
      min     = 2
      max     = 30
      policy {
        evaluation_interval = "5s"
        cooldown            = "1m"
        check "active_connections" {
          source = "prometheus"
          query  = "sum(haproxy_server_current_sessions)/count(up)"
          strategy "target-value" {
            target = 10
          }
        }
      }
    }

    task "main" {
      driver = "raw_exec"
      config {
        command = "true"
      }
      scaling "cpu" {
        enabled = true
        min     = 100
        max     = 1000
        policy {
          cooldown = "1m"
          check "95pct" {
            strategy "app-sizing-percentile" {
              percentile = "95"
            }
          }
        }
      }
      scaling "mem" {
        max = 512
      }
    }
  }
}
