job "ui" {
  ui {
    description = "A **job** with $${nothing} known later"
    link {
      label = "Docs"
      url   = "https://example.org/docs"
    }
    link {
      label = "Source"
      url   = "https://example.org/src"
    }
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
