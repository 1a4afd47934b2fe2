job "task-all" {
  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "sleep"
        args    = ["60"]
      }

      user           = "nobody"
      leader         = true
      kill_timeout   = "20s"
      kill_signal    = "SIGINT"
      shutdown_delay = "1500ms"

      constraint {
        attribute = "${attr.cpu.arch}"
        value     = "amd64"
      }
      affinity {
        attribute = "${meta.ssd}"
        value     = true
        weight    = 10
      }
      env {
        PORT  = 8080
        DEBUG = true
      }
      meta {
        version = 1.5
      }
      restart {
        attempts = 0
      }
      logs {
        max_files     = 3
        max_file_size = 5
        disabled      = false
      }
    }
  }
}
