job "action" {
  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "sleep"
        args    = ["60"]
      }

      action "flush" {
        command = "/bin/flush"
        args    = ["--all", "${NOMAD_TASK_DIR}"]
      }
      action "noop" {
        command = "/bin/true"
      }
    }
  }
}
