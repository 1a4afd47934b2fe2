variable "list" {
  default = ["a"]
}
job "web" {
  group "g" {
    task "t" {
      driver = "x"
      env {
        A = "x-${var.list}"
        B = var.list
        C = "%{ if node.class == "big" }x%{ endif }"
        D = "${var.list[3]}-${node.class}"
      }
      config {
        a = "${var.list + 1}"
        a {
          b = 1
        }
      }
    }
  }
}
