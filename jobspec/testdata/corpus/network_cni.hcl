job "network-cni" {
  group "app" {
    network {
      mode = "cni/mynet"
      port "http" { to = 8080 }
      cni {
        args = {
          "nomad.region" : "${node.region}"
          IgnoreUnknown = true
        }
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
