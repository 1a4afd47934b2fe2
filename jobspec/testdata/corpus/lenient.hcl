job "lenient" {
  future = true
  horizon "x" {
    y = 1
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      comand = "x"
      quantum {}
    }
  }
}
