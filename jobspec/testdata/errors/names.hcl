variable "size" {
  default = "x"
}
job "web" {
  type = batch
  name = "${node.unique.name}"
  group "g" {
    count = "${NOMAD_COUNT}"
    task "t" {
      driver      = raw_exec
      kill_signal = attr.signal
      env {
        A = hello
      }
      meta = { "${node.class}" = "x" }
      config {
        command = sh
        args    = ["-c", var, upper(var.size)]
      }
    }
  }
}
