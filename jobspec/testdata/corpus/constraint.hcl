job "constraint" {
  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }
  constraint {
    attribute = "${attr.cpu.arch}"
    operator  = "set_contains_any"
    value     = "amd64,arm64"
  }
  constraint {
    attribute = node.class
    operator  = "is_set"
  }

  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "true"
      }
    }
  }
}
