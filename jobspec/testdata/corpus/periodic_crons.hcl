job "periodic-crons" {
  type = "batch"
  periodic {
    crons = ["0 0 1 1 *", "0 30 4 1 * * 2030", "@daily"]
  }

  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "true"
      }
    }
  }
}
