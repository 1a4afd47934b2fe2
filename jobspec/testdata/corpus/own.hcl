# What Nomad's job files do not have.
job "own" {
  group "g" {
    restart {
      attempts       = 5
      delay          = "1s"
      delay_function = "exponential"
      max_delay      = "1m"
      reset_after    = "10m"

      on_exit {
        codes  = [78, -1]
        action = "fail"
      }
      on_exit {
        signals = ["SIGTERM", "9"]
        oom     = true
        action  = "restart"
      }
    }

    task "db" {
      driver = "raw_exec"
    }

    task "web" {
      driver = "raw_exec"

      depends_on "db" {
        condition = "healthy"
      }
      depends_on "setup" {
        condition = "completed"
      }
      restart {
        on_exit {
          codes  = [0]
          action = "complete"
        }
      }
    }

    task "setup" {
      driver = "raw_exec"

      lifecycle {
        hook = "prestart"
      }
    }

    task "late" {
      driver = "raw_exec"
      depends_on "web" {}
    }
  }
}
