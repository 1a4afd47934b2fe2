job "heredocs" {
  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args = ["-c", <<EOF
        set -e
          echo "in a list: $HOME \n stays"
      EOF
        , "last"]
      }

      env {
        PLAIN = <<EOF
          keeps its indentation
            all of it
      EOF
        INDENTED = <<-EOF
          loses what all lines share
            and keeps the rest

          also over empty lines
          EOF
        ONE = <<E
      x
      E
      }
    }
  }
}
