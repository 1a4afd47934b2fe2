job "crlf" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      env {
        A = "x"
        B = <<EOF
 line
EOF
      }
    }
  }
}
