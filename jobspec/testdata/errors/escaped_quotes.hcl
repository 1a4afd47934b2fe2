job "x" {
  group "g" {
    meta {
      a = "${meta.\"x\"}"
    }
    task "t" {
      driver = "raw_exec"
    }
  }
}
