# A service that runs until it is stopped and prints a line a second:
#
#   nodekeep serve --enable-raw-exec        in one terminal
#   nodekeep apply service.hcl              in another; then try
#   nodekeep logs -f clock                  … kill -9 the first one, start it
#                                           again: no line is missing
job "clock" {
  # service: also an exit with code 0 is followed by a restart.
  type = "service"

  group "clock" {
    task "tick" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          i=0
          while :; do
            i=$((i + 1))
            echo "tick $i"
            sleep 1
          done
        EOF
        ]
      }

      # Two files of 1 MiB are kept of each of stdout and stderr.
      logs {
        max_files     = 2
        max_file_size = 1
      }

      # Ten restarts a minute, then it waits for the next minute.
      restart {
        attempts = 10
        interval = "1m"
        delay    = "1s"
        mode     = "delay"
      }
    }
  }
}
