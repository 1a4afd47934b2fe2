job "job-types-sysbatch" {
  type     = "sysbatch"
  priority = 0

  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "true"
      }
    }
  }
}
