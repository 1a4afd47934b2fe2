# Every block and argument of the language.
variable "image" {
  type        = string
  default     = "v1"
  description = "unused"
}
variable "ports" {
  type    = list(number)
  default = [80, 443]
}
variable "untyped" {
  default = "text"
}
variable "settings" {
  type    = object({ debug = bool, level = number })
  default = { debug = true, level = "3" }
}

locals {
  root = "${local.base}/lib"
  base = "${NOMAD_ALLOC_DIR}/${var.image}"
}
locals {
  literal = "$${NOT_HERE}"
  flags   = [for p in var.ports : "--port=${p}"]
}

job "web" {
  id          = "web-id"
  name        = "web site"
  type        = "service"
  namespace   = "prod"
  region      = "eu"
  datacenters = ["dc1", "dc2"]
  priority    = 70

  meta {
    owner = "team-a"
    size  = 3
  }

  group "api" {
    count          = 2
    shutdown_delay = "10s"
    meta           = { tier = "front", "dashed-name" = true }

    ephemeral_disk {
      size = 500
    }

    restart {
      attempts = 5
      interval = "10m"
      delay    = "1s"
      mode     = "delay"
    }

    task "init" {
      driver = "raw_exec"
      lifecycle {
        hook = "prestart"
      }
      config {
        command = "true"
      }
    }

    task "server" {
      driver         = "docker"
      user           = "${meta.user}"
      leader         = true
      kill_timeout   = "0s"
      kill_signal    = "SIGINT"
      shutdown_delay = "500ms"

      config {
        image = "registry/web:${var.image}"
        args = [
          local.flags[0], "-v", "${attr.cpu.numcores > var.settings.level ? "big" : "small"}",
          "%%{not} %{ if var.settings.debug }debug-${NOMAD_TASK_NAME}%{ endif }",
          "%{ if node.class == var.image }special%{ endif }",
        ]
        privileged = false
        ulimit = {
          nofile          = "1024:2048"
          "${node.class}" = 1
        }
        precise = 9007199254740993
        pi      = 3.14159
        nothing = null
        mount {
          type   = "bind"
          source = "local/x"
        }
        mount {
          type = "tmpfs"
          tmpfs_options {
            size = 100
          }
        }
        volume "data" {
          path = "${local.root}"
        }
        volume "more" "deep" {
          path = local.base
        }
        labels = { for k in ["a", "b"] : k => "${k}-x" }
      }

      env {
        PLAIN   = "x"
        NUMBER  = 8080
        BOOL    = var.settings.debug
        NODE    = "${node.unique.name}/${attr.kernel.name}"
        BARE    = node.class
        LITERAL = "$${NOT_HERE} and ${local.literal}"
        SCRIPT  = <<EOF
  keeps ${var.image}
    its indentation, $HOME and ${HOME}
EOF
      }

      meta {
        version = "${var.image}"
      }

      resources {
        cpu        = 500
        memory     = 256
        memory_max = -1
        secrets    = 2
      }

      restart {
        attempts = 0
      }

      logs {
        max_files     = 3
        max_file_size = 5
        disabled      = true
      }
    }

    task "side" {
      driver = "raw_exec"
      env    = { "A" = "1", "B" = "${env.A}" }
      lifecycle {
        hook    = "poststart"
        sidecar = true
      }
      resources {
        cores = 2
      }
    }
  }

  group "empty-count" {
    count = "0"
    task "t" {
      driver = "x"
    }
  }
}
