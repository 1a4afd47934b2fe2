job "x" {
  meta {
    a = file("secrets")
    b = templatefile("x", {})
    c = env("HOME")
    d = upper(node.class)
    e = base64encode("x-${NOMAD_ALLOC_ID}")
    f = parseint("x", 10)
    g = jsondecode("{")
    h = element([], 0)
    i = "${[for x in attr.list : x]}"
    j = "${max(attr.n, 1)}"
    k = "${attr.n > max(1, 2)}"
    l = nothere("x")
    m = try(local.x, var.y)
    n = convert("x", number)
    o = abspath("x")
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
    }
  }
}
