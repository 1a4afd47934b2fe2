job "schedule" {
  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "sleep"
        args    = ["60"]
      }

      schedule {
        cron {
          start    = "0 30 11 * * 1-5"
          end      = "0 17"
          timezone = "America/New_York"
        }
      }
    }
  }
}
