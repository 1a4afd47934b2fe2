job "network" {
  group "app" {
    network {
      mode     = "bridge"
      hostname = "web-${NOMAD_ALLOC_INDEX}"

      port "http" {}
      port "admin" {
        to           = 9000
        host_network = "private"
      }
      port "lb" {
        static           = 8889
        to               = "-1"
        ignore_collision = true
      }
      dns {
        servers  = ["10.0.0.1", "${attr.unique.network.ip-address}"]
        searches = ["svc.local"]
        options  = ["ndots:2"]
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
