job "resources-legacy" {
  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "sleep"
        args    = ["60"]
      }

      resources {
        cpu  = 20
        disk = 300
        iops = 10
        network {
          mbits = 10
          port "http" {
            static = "26257"
          }
          port "ui" {}
        }
      }
      logs {
        enabled = false
      }
    }
  }
}
