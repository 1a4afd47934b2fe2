job "group-disconnect" {
  group "app" {
    disconnect {
      lost_after           = "6h"
      stop_on_client_after = "0s"
      replace              = false
      reconcile            = "best_score"
    }

    task "main" {
      driver = "raw_exec"

      config {
        command = "true"
      }
    }
  }
}
