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

# Every task finds facts about itself in variables that begin with NOMAD_, as jobs
# for Nomad expect. Those used below, and some more:
#
#   NOMAD_ALLOC_DIR     the directory that all tasks of the group share
#   NOMAD_TASK_DIR      the task's own directory "local"
#   NOMAD_SECRETS_DIR   its directory for secrets, in memory only where root runs
#   NOMAD_TASK_NAME, NOMAD_GROUP_NAME, NOMAD_JOB_NAME, NOMAD_ALLOC_NAME
#   NOMAD_ALLOC_ID, NOMAD_ALLOC_INDEX, NOMAD_META_…
#
# "nodekeep run" with a task whose command is "env" shows all of them.

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

      # Who fills in what:
      #
      #   ${var.greeting}    nodekeep, when this file is read
      #   ${NOMAD_ALLOC_DIR} nodekeep, when the task starts: the task sees the value
      #   $GREETING          the shell, from the task's environment
      #   $${GREETING}       the shell too: $$ is how a $ is written before a brace,
      #                      so that the task sees ${GREETING}
      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          while read -r guest; do
            echo "$${GREETING}, $guest!"
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
