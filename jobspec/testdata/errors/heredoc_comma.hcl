job "x" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "sh"
        args = ["-c", <<EOT
echo hi
EOT, "x"]
      }
    }
  }
}
