job "affinity" {
  affinity {
    attribute = "${node.datacenter}"
    operator  = "="
    value     = "dc1"
    weight    = 100
  }
  affinity {
    attribute = "${meta.rack}"
    regexp    = "r[0-9]"
    weight    = "-50"
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
