# Durations without a unit are nanoseconds, an empty text is no number.
variable "spare" {
  default = ""
}
job "numbers" {
  group "many" {
    count          = var.spare
    shutdown_delay = 2000000000

    restart {
      attempts = ""
      delay    = 15000000000
      interval = 30 * 60 * 1000 * 1000 * 1000
    }

    network {
      port "http" {
        static = var.spare
        to     = ""
      }
    }

    task "main" {
      driver       = "raw_exec"
      kill_timeout = 0
      config {
        command = "true"
      }
      resources {
        cpu        = var.spare
        memory     = 64
        memory_max = ""
      }
    }
  }
}
