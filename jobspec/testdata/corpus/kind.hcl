job "kind" {
  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "sleep"
        args    = ["60"]
      }

      kind = "connect-proxy:web"
    }
  }
}
