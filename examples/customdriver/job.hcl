job "hello" {
  type = "batch"

  group "g" {
    task "main" {
      driver = "script"

      config {
        script = <<-EOT
          echo "hello from $NOMAD_TASK_NAME"
          sleep 60
        EOT
      }
    }
  }
}
