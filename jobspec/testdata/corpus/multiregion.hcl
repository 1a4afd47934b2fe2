job "multiregion" {
  multiregion {
    strategy {
      max_parallel = 1
      on_failure   = "fail_all"
    }
    region "west" {
      count       = 2
      datacenters = ["west-1"]
      node_pool   = "west"
      meta {
        my-key = "W"
      }
    }
    region "east" {
      count       = 5
      datacenters = ["east-1", "east-2"]
    }
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
