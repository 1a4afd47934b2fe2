job "resources-cores" {
  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "sleep"
        args    = ["60"]
      }

      resources {
        cores      = 2
        memory     = "1024"
        memory_max = -1

        device "nvidia/gpu" {
          count = 2

          constraint {
            attribute = "${device.attr.memory}"
            operator  = ">="
            value     = "2 GiB"
          }
          affinity {
            attribute = "${device.attr.memory}"
            operator  = ">="
            value     = "4 GiB"
            weight    = 75
          }
        }
        device "intel/qat" {}
        numa {
          affinity = "require"
          devices  = ["nvidia/gpu"]
        }
      }
    }
  }
}
