variable "n" {
  type = number
  default = 12
  validation {
    condition     = var.n < 10
    error_message = "At most 9, not ${var.n}."
  }
  validation {
    condition = var.n
    error_message = "x"
  }
  validation {
    condition = true
  }
  validation {
    conditio = true
  }
}
variables {
  n = 1
  x {}
}
job "x" {
  group "g" {
    task "t" {
      driver = "raw_exec"
    }
  }
}
