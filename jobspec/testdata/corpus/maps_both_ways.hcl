job "maps-both-ways" {
  meta = {
    k = "v"
  }

  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "sleep"
        args    = ["60"]
      }

      env = {
        A         = "1"
        "b.c"     = "2"
      }
      env {
        A = "3"
        D = "4"
      }
      meta {
        x = "1"
      }
      meta {
        y = "2"
      }
    }
  }
}
