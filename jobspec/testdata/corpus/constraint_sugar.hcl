job "constraint-sugar" {
  constraint {
    distinct_hosts = true
  }
  constraint {
    distinct_property = "${meta.rack}"
    value             = "3"
  }
  constraint {
    attribute = "${attr.kernel.version}"
    version   = ">= 3.19"
  }
  constraint {
    attribute = "${attr.nomad.version}"
    semver    = ">= 1.0.0"
  }
  constraint {
    attribute = "${attr.kernel.name}"
    regexp    = "[a-z]+"
  }
  constraint {
    attribute    = "${meta.cached}"
    set_contains = "a,b"
  }
  constraint {
    attribute        = "${meta.cached}"
    set_contains_any = "a,b"
  }
  constraint {
    attribute        = "${meta.cached}"
    set_contains_all = "a,b"
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
