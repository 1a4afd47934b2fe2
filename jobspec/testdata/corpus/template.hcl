job "template" {
  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "sleep"
        args    = ["60"]
      }

      template {
        data          = <<EOF
          bind {{ env "NOMAD_IP_http" }}:${NOMAD_PORT_http}
          # $${kept} and $${NAME:-default} are a shell's
          {{ range service "db" }}server {{ .Address }}:{{ .Port }}
          {{ end }}
      EOF
        destination   = "local/app.conf"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        perms         = 755
        uid           = 1000
        gid           = "1001"
        splay         = "0s"
        wait {
          min = "5s"
          max = "10s"
        }
      }
      template {
        source               = "local/in.tpl"
        destination          = "${NOMAD_SECRETS_DIR}/out"
        left_delimiter       = "[["
        right_delimiter      = "]]"
        env                  = true
        once                 = true
        error_on_missing_key = true
        vault_grace          = "15s"
        change_mode          = "script"
        change_script {
          command       = "/bin/reload"
          args          = ["--now", "${NOMAD_TASK_NAME}"]
          timeout       = "20s"
          fail_on_error = true
        }
      }
    }
  }
}
