job "web" {
  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }
  update {}
  jobs = 1

  group "api" {
    network {
      port "http" {}
    }
    stop_after_client_disconnect = "1m"
    counts = 2

    task "server" {
      driver = "raw_exec"
      template {
        data        = "x"
        destination = "local/x"
      }
      comand = "x"
      resources {
        memroy = 10
        network {}
      }
      restart {
        render_templates = true
      }
      lifecycle {
        hook  = "prestart"
        hooks = 1
      }
      ephemeral_disk {
        size = 1
      }
    }
  }
}
variables {
  x = 1
}
resource "x" "y" {}
count = 3
