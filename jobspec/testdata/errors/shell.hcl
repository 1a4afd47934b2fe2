job "x" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo ${NAME:-default} $${FINE:-x} ${OK}"]
      }
      template {
        data        = <<EOH
#!/bin/sh
exec run --port "${PORT:?missing}" ${#ARGS} ${FILE%.txt}
EOH
        destination = "local/run.sh"
      }
    }
  }
}
