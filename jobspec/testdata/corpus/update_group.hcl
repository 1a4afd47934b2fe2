job "update-group" {
  update {
    max_parallel     = 2
    min_healthy_time = "20s"
  }

  group "app" {
    update {
      healthy_deadline = "9m"
    }
    migrate {}
    reschedule {
      delay     = "5s"
      unlimited = true
    }

    task "main" {
      driver = "raw_exec"

      config {
        command = "true"
      }
    }
  }
}
