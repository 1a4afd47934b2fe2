job "secret" {
  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "sleep"
        args    = ["60"]
      }

      secret "db" {
        provider = "vault"
        path     = "secret/${meta.env}/db"
        config {
          engine = "kv_v2"
        }
      }
      secret "plugin" {
        provider = "custom"
        path     = "x"
        env {
          REGION = "eu"
        }
      }
      env {
        PASSWORD = secret.db.password
        USER     = "${secret.db.user}"
      }
    }
  }
}
