job "render" {
  group "render" {
    task "render" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo rendering with $SEATS; sleep 60"]
      }
      resources {
        device "acme/seat" {
          count = 2
          constraint {
            attribute = "${device.model}"
            value     = "render"
          }
          affinity {
            attribute = "${device.attr.seats}"
            operator  = ">="
            value     = "4"
            weight    = 50
          }
        }
      }
    }
  }
}
