job "resources" {
  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "sleep"
        args    = ["60"]
      }

      resources {
        cpu        = 500
        memory     = 256
        memory_max = 512
        secrets    = 4
      }
    }
  }
}
