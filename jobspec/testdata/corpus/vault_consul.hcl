job "vault-consul" {
  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "sleep"
        args    = ["60"]
      }

      vault {
        cluster                = "default"
        role                   = "prod"
        namespace              = "eng"
        policies               = ["a", "b"]
        env                    = false
        disable_file           = true
        allow_token_expiration = true
        change_mode            = "signal"
        change_signal          = "SIGUSR1"
      }
      consul {
        cluster   = "default"
        namespace = "prod"
        partition = "p"
      }
    }
  }
}
