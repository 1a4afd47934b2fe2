jbo "x" {}
job "x" {
  datacenter = ["dc1"]
  contraint {
    atribute = "x"
  }
  group "g" {
    networks {}
    restart {
      atempts = 1
      mode    = "fial"
    }
    task "t" {
      driver  = "raw_exec"
      command = "x"
      image   = "y"
      resource {}
      kilTimeout = "5s"
      killtimeout = "5s"
      resources {
        mem = 100
      }
      env {
        A = var.nmae
        B = uper("x")
        C = local.nothing
      }
      template {
        destnation = "x"
      }
    }
    update {
      health_check = "check"
    }
  }
}
variable "name" {
  default = "x"
}
