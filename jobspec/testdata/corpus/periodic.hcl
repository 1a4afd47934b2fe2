job "periodic" {
  type = "batch"
  periodic {
    enabled          = true
    cron             = "*/15 * * * * *"
    prohibit_overlap = true
    time_zone        = "Europe/Berlin"
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
