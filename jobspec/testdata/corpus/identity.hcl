job "identity" {
  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "sleep"
        args    = ["60"]
      }

      identity {
        env         = true
        file        = true
        filepath    = "local/id.jwt"
        change_mode = "restart"
      }
      identity {
        name          = "aws"
        aud           = ["sts.amazonaws.com"]
        file          = true
        ttl           = "1h30m"
        change_mode   = "signal"
        change_signal = "SIGHUP"
      }
      identity {
        name         = "consul_svc"
        service_name = "web"
      }
    }
  }
}
