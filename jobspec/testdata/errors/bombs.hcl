locals {
  a = "0123456789abcdef"
  b = "${local.a}${local.a}${local.a}${local.a}${local.a}${local.a}${local.a}${local.a}${local.a}${local.a}${local.a}${local.a}${local.a}${local.a}${local.a}${local.a}"
  c = join("", [for x in range(1000) : local.b])
  d = join("", [for x in range(1000) : local.c])
  e = join("", [for x in range(1000) : local.d])
}
job "x" {
  group "g" {
    task "t" {
      driver = "raw_exec"
    }
  }
}
