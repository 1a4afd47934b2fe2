job "lifecycle" {
  group "app" {
    task "init" {
      driver = "raw_exec"
      config {
        command = "true"
      }
      lifecycle {
        hook = "prestart"
      }
    }
    task "proxy" {
      driver = "raw_exec"
      config {
        command = "sleep"
        args    = ["1h"]
      }
      lifecycle {
        hook    = "poststart"
        sidecar = true
      }
    }
    task "clean" {
      driver = "raw_exec"
      config {
        command = "true"
      }
      lifecycle {
        hook = "poststop"
      }
    }
    task "main" {
      driver = "raw_exec"
      config {
        command = "true"
      }
    }
  }
}
