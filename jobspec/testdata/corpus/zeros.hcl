job "zeros" {
  group "app" {
    count = 0

    task "main" {
      driver = "raw_exec"

      config {
        command = "sleep"
        args    = ["60"]
      }

      kill_timeout   = "0s"
      shutdown_delay = "0s"
      restart {
        attempts = 0
        interval = "0s"
        delay    = 0
      }
    }
  }
}
