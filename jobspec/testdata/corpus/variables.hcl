variable "image" {
  type        = string
  default     = "web"
  description = "What runs."
}
variable "count" {
  type = number
  validation {
    condition     = var.count > 0 && var.count < 10
    error_message = "Between 1 and 9."
  }
}
variable "tags" {
  type    = list(string)
  default = []
}
variable "limits" {
  type = object({ cpu = number, memory = number })
  default = {
    cpu    = 100
    memory = "64"
  }
}
variable "from_env" {}
variable "secret" {
  sensitive = true
  default   = "$${not a reference}"
}
variables {
  extra = ["a", { b = 1 }]
}
locals {
  name = "${local.base}-x"
  base = var.image
}
locals {
  both = { for k, v in { a = 1, b = 2 } : upper(k) => "${k}${v}" }
}
job "variables" {
  meta = local.both
  group "g" {
    count = var.count
    task "t" {
      driver = "raw_exec"
      config {
        command = local.name
        args    = concat(var.tags, ["${var.secret}", var.extra[1].b])
      }
      env {
        FROM = var.from_env
      }
      resources {
        cpu    = var.limits.cpu
        memory = var.limits["memory"]
      }
    }
  }
}
