job "update" {
  update {
    stagger           = "30s"
    max_parallel      = 3
    health_check      = "task_states"
    min_healthy_time  = "15s"
    healthy_deadline  = "4m"
    progress_deadline = "0s"
    auto_revert       = true
    auto_promote      = false
    canary            = 1
  }
  migrate {
    max_parallel     = 1
    health_check     = "checks"
    min_healthy_time = "10s"
    healthy_deadline = "5m"
  }
  reschedule {
    attempts       = 15
    interval       = "1h"
    delay          = "30s"
    delay_function = "exponential"
    max_delay      = "120s"
    unlimited      = false
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
