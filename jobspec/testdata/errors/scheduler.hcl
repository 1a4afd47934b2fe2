job "x" {
  constraint {
    attribute = ["a"]
    operator  = "="
    version   = "1"
  }
  spread {
    weight = "much"
    target {}
  }
  periodic {
    cron      = "* * *"
    crons     = ["0 0 * * *", "one two three four five six seven eight"]
    time_zone = "Nowhere/Here"
  }
  multiregion {
    strategy {
      on_failure = "panic"
    }
  }
  reschedule {
    delay    = 1.5
    interval = "5d"
    max_delay = "10"
    attempts = -1
  }
  parameterized {
    payload = "maybe"
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      volume_mount {
        volume      = "nowhere"
        destination = "/x"
      }
      template {
        destination = "x"
        perms       = "rwx"
        splay       = "-1s"
      }
      artifact {}
      service {
        check {
          type     = "ping"
          interval = "10s"
        }
      }
      vault {
        change_mode = "signal"
      }
    }
  }
}
