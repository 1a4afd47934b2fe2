# A task that sees nothing of the machine it runs on but its programs:
#
#   go run ./examples/agent run examples/agent/jobs/isolated.hcl     as root
#
# It has processes, users, devices, limits and directories of its own.

job "isolated" {
  type = "batch"

  group "demo" {
    task "look" {
      driver = "exec"

      # Without a user it runs as nobody. As root it may run only where the node
      # allows it, or in a user namespace.
      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          echo "I am $(id -un) on $(hostname), process $$"
          echo "processes: $(ls -d /proc/[0-9]* | wc -l)"
          echo "devices:   $(ls /dev | tr '\n' ' ')"
          echo "mine to write: $NOMAD_ALLOC_DIR $NOMAD_TASK_DIR $NOMAD_SECRETS_DIR /tmp"
          touch /usr/bin/x 2>&1 || true
        EOF
        ]

        # Capabilities beyond the default set must be allowed by the node; fewer may
        # always be asked for.
        cap_drop = ["all"]

        # At most so many processes and threads.
        pids_limit = 50
      }

      # 100 MHz are a share of the processor, 64 MB are a limit.
      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
