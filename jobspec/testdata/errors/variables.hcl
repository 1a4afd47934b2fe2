variable "region" {
  type = string
}
variable "count" {
  type    = number
  default = "many"
}
variable "region" {}
variable {}
variable "sensible" {
  sensitive = true
  default   = local.a
  validation {}
}
locals {
  a = local.b
  b = "${local.c}!"
  c = local.a
}
locals {
  a = 1
}
job "web" {
  name = "${var.regoin}-${local.d}"
  group "g" {
    task "t" {
      driver = "x"
      config {
        list = [var.nowhere, "x"]
      }
    }
  }
}
