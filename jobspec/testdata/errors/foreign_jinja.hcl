job "x" {
  group "g" {
    count = {{ count }}
    task "t" {
      driver = "raw_exec"
    }
  }
}
