job "web" {
  type     = "cron"
  priority = 0
  datacenters = [["x"]]
  meta     = "x"

  group "api" {
    count          = 1.5
    shutdown_delay = 0.5

    restart {
      attempts = -1
      mode     = "retry"
    }

    task "alloc" {
      driver       = ["raw_exec"]
      leader       = "perhaps"
      kill_timeout = "10 seconds"
      config {
        big = 1e100000
      }
      resources {
        cpu        = 0
        memory     = "lots"
        memory_max = 10
        cores      = 2
      }
      logs {
        max_files = 0
      }
      lifecycle {
        hook = "prestop"
      }
      env = ["A=B"]
    }
  }

  group "many" {
    count = 1000000
    task "t" {
      driver = "x"
    }
  }
}
