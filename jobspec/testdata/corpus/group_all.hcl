job "group-all" {
  group "app" {
    count                      = 3
    shutdown_delay             = "5s"
    max_run_duration           = "2h"
    prevent_reschedule_on_lost = true

    meta {
      tier = "front"
    }
    restart {
      attempts         = 3
      interval         = "10m"
      delay            = "25s"
      mode             = "delay"
      render_templates = true
    }
    ephemeral_disk {
      size    = 500
      sticky  = true
      migrate = true
    }

    task "main" {
      driver = "raw_exec"

      config {
        command = "true"
      }
    }
  }
}
