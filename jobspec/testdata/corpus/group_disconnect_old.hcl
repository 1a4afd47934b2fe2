job "group-disconnect-old" {
  group "app" {
    stop_after_client_disconnect = "90s"
    max_client_disconnect        = "12h"

    task "main" {
      driver = "raw_exec"

      config {
        command = "true"
      }
    }
  }
}
