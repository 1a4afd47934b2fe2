job "x" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "curl"
        args    = ["-w", "%{http_code}"]
      }
    }
  }
}
