locals {
  ports = { web = 8080, admin = 9090 }
  tasks = ["alpha", "beta"]
}
job "dynamic" {
  dynamic "group" {
    for_each = local.tasks
    labels   = ["g-${group.value}"]
    content {
      count = group.key + 1
      network {
        dynamic "port" {
          for_each = local.ports
          iterator = p
          labels   = [p.key]
          content {
            static = p.value + group.key
          }
        }
      }
      service {
        name = "first"
      }
      dynamic "service" {
        for_each = toset(["b", "a"])
        content {
          name = service.value
          tags = [service.key, "${NOMAD_ALLOC_ID}"]
        }
      }
      service {
        name = "last"
      }
      task "t" {
        driver = "raw_exec"
        dynamic "env" {
          for_each = ["x"]
          content {
            NAME = env.value
          }
        }
      }
    }
  }
}
