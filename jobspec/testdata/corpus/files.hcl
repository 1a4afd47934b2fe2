job "files" {
  meta {
    text     = file("hello.txt")
    escaped  = file("/conf.d/shell.sh")
    base64   = filebase64("hello.txt")
    exists   = "${fileexists("hello.txt")} ${fileexists("nowhere")}"
    set      = join(",", fileset(".", "conf.d/*.sh"))
    all      = join(",", fileset(".", "**"))
    template = templatefile("greet.tpl", { name = "world", list = ["a", "b"] })
    paths    = "${basename("a/b.c")} ${dirname("a/b.c")} ${abspath("x")} ${pathexpand("~/x")}"
    env      = env("HOME")
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      template {
        data        = file("conf.d/shell.sh")
        destination = "local/shell.sh"
      }
    }
  }
}
