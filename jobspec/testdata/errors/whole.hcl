job "web" {
  type = "cron"

  group "api" {
    restart {
      mode = "retry"
    }

    task "alloc" {
      driver = "x"
      resources {
        cpu        = 100
        memory     = 100
        memory_max = 10
      }
      lifecycle {
        hook = "prestop"
      }
    }

    task "web" {
      driver = "x"
      leader = true
      lifecycle {
        hook    = "poststop"
        sidecar = true
      }
    }

    task "WEB" {
      leader = true
    }
  }
}
