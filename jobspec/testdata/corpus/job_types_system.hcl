job "job-types-system" {
  type = "system"

  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "true"
      }
    }
  }
}
