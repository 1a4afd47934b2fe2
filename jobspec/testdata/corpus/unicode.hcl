job "überjob-日本" {
  group "grüppe" {
    task "tâche" {
      driver = "raw_exec"
      env {
        GRÜSSE = "zero\u200bwidth  nbsp 😀"
      }
    }
  }
}
