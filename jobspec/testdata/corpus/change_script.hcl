job "change-script" {
  group "app" {
    service {
      name = "app"
      port = "9000"
      connect {
        sidecar_service {}
        sidecar_task {
          identity {
            name = "metrics"
            aud  = ["metrics.example"]
            ttl  = "30m"
            file = true
          }
          volume_mount {
            volume      = "certs"
            destination = "/certs"
          }
        }
      }
    }

    volume "certs" {
      type      = "host"
      source    = "certs"
      read_only = true
    }

    task "main" {
      driver = "raw_exec"
      config {
        command = "sleep"
        args    = ["60"]
      }
      template {
        data        = "limit={{ key \"limit\" }}\n"
        destination = "local/limits"
        change_mode = "script"
        change_script {
          command             = "local/reload"
          args                = ["--quiet"]
          timeout             = "20s"
          fail_on_error       = true
          run_on_first_render = true
        }
      }
    }
  }
}
