job "legacy-job-task" {
  task "alone" {
    driver = "raw_exec"
    config {
      command = "true"
    }
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
    }
  }
}
