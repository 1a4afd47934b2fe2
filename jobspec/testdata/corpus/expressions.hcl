variable "n" {
  default = 3
}
variable "on" {
  type    = bool
  default = true
}
locals {
  list = [for i in range(var.n) : "s${i}"]
  objs = [{ name = "a", on = true }, { name = "b", on = false }]
}
job "expressions" {
  meta {
    arithmetic  = (1 + 2) * var.n - 4 / 2 % 3
    comparison  = var.n >= 3 && !(var.n == 4) || false
    conditional = var.on ? "yes" : "no"
    negative    = -var.n
    index       = local.list[1]
    splat       = join(",", local.objs[*].name)
    legacy      = join(",", local.objs.*.name)
    filtered    = join(",", [for o in local.objs : o.name if o.on])
    grouped     = jsonencode({ for o in local.objs : (o.on ? "on" : "off") => o.name... })
    directive   = "%{ for s in local.list ~}[${s}]%{ endfor }%{ if var.on }!%{ endif }"
    try         = try(local.objs[7].name, var.n, "never")
    can         = can(local.objs[7].name)
    convert     = jsonencode(convert(["1", 2], list(number)))
    later       = "${var.on ? "${NOMAD_A}" : "x"}-${join(":", [node.class, "${var.n}"])}"
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "x"
        args = concat(
          ["--n=${var.n}"],
          [for s in local.list : "--dir=${NOMAD_TASK_DIR}/${s}"],
          var.on ? ["--on"] : [],
        )
        mixed = "${attr.cpu.numcores > var.n ? local.list[0] : "none"}"
      }
    }
  }
}
