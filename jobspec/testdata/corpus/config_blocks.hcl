job "config-blocks" {
  group "app" {
    task "main" {
      driver = "docker"

      config {
        image = "registry.local/web:${meta.version}"
        ports = ["http"]
        mount {
          type   = "bind"
          source = "local"
        }
        mount {
          type = "tmpfs"
          tmpfs_options {
            size = 100000
          }
        }
        volume "a" "b" {
          ro = true
        }
        labels = {
          "com.example.team" = "x"
          "${node.class}"    = "by name"
          for                = "a word of the language"
        }
        logging {
          type = "journald"
          config {
            tag = "web"
          }
        }
        dynamic "device" {
          for_each = ["/dev/a", "/dev/b"]
          content {
            host_path = device.value
            index     = device.key
          }
        }
      }


    }
  }
}
