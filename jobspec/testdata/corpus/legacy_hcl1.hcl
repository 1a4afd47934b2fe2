"job" "legacy" {
  "datacenters" = ["dc1"]
  "type"        = "batch"
  meta {
    "plain"      = "x"
    "dotted.key" = "y"
  }
  group "g" {
    task "t" {
      "driver" = "raw_exec"
      config {
        "command" = "/bin/true"
        "args" = ["a"]
        labels {
          "com.example.x" = "1"
        }
      }
      env {
        "KEY"   = "v"
        "A.KEY" = "w"
      }
    }
  }
}
