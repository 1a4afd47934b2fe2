job "coercion" {
  group "app" {
    count = "2"
    network {
      port "sql" {
        static = "26257"
        to     = "80"
      }
    }
    service {
      name = "number"
      port = 4646
      check {
        type     = "tcp"
        port     = 8081
        interval = "10s"
        timeout  = "2s"
      }
    }

    task "main" {
      driver = "raw_exec"

      config {
        command = "x"
        n       = 3
        s       = "3"
        big     = 9007199254740993
        pi      = 3.14159
        t       = true
        nothing = null
        empty   = []
        none    = {}
      }

      leader = "true"
      env {
        N = 1
        F = 1.50
        B = false
        Z = null
      }
      meta = {
        port  = 8080
        "a.b" = true
      }
      template {
        data        = "x"
        destination = "local/x"
        perms       = 0644
        env         = "false"
      }
      template {
        data        = 5
        destination = "local/y"
        perms       = 755
      }
      resources {
        cpu = "250"
      }
    }
  }
}
