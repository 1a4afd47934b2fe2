# A first job: three tasks that work together, done in about five seconds.
#
#   go run ./examples/agent run examples/agent/jobs/hello.hcl
#
#   prepare   runs once, before all others, and leaves a file for them
#   greet     the main task: the job is done when it is
#   watch     a sidecar: runs beside the main task and is stopped after it

# A value that whoever runs the job may set:  --var greeting=Salut
variable "greeting" {
  type        = string
  default     = "Hello"
  description = "what greet says"
}

job "hello" {
  # batch: runs to its end. A service would be started again whenever it ends.
  type = "batch"

  # Tasks of one group run on one machine and share a directory, which each of
  # them finds under NOMAD_ALLOC_DIR. "count = 2" would run the group twice.
  group "demo" {

    task "prepare" {
      # A prestart task that is no sidecar must end well before main tasks start.
      lifecycle {
        hook = "prestart"
      }

      # raw_exec runs a plain process, with no isolation.
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo writing the guest list; printf '%s\\n' Ada Grace Edsger > $NOMAD_ALLOC_DIR/data/guests"]
      }
    }

    task "greet" {
      # No lifecycle block: a main task.
      driver = "raw_exec"

      # $${...} with two dollars would reach the shell as it is. One dollar and
      # braces are filled in: ${var.…} when this file is read, all else when the
      # task starts. $NAME without braces is left to the shell, which finds its
      # values in the task's environment.
      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          while read -r guest; do
            echo "$GREETING, $guest!"
            sleep 1
          done < ${NOMAD_ALLOC_DIR}/data/guests
          echo "that was ${NOMAD_TASK_NAME} of ${NOMAD_ALLOC_NAME}"
        EOF
        ]
      }

      env {
        GREETING = var.greeting
      }

      # If it fails it gets one more try, a second later, and then has failed.
      restart {
        attempts = 1
        delay    = "1s"
        mode     = "fail"
      }
    }

    task "watch" {
      # A prestart sidecar starts together with the other prestart tasks, and the
      # main tasks wait until it runs. If it ends it is started again. When the main
      # tasks are done it is stopped: kill_signal first, SIGKILL after kill_timeout.
      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          trap 'echo "the party is over"; exit 0' TERM
          # Prestart tasks start together: prepare may not be done yet.
          until [ -s $NOMAD_ALLOC_DIR/data/guests ]; do sleep 0.1; done
          while :; do
            echo "$(ls $NOMAD_ALLOC_DIR/data | wc -l) file(s) in the shared directory"
            sleep 1
          done
        EOF
        ]
      }

      kill_signal  = "SIGTERM"
      kill_timeout = "3s"
    }
  }
}
