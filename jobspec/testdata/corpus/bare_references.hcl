job "bare-references" {
  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = NOMAD_META_command
        args    = [node.unique.name, "x-${env.HOME}"]
      }

      user = meta.user
      env {
        CLASS = node.class
        ALLOC = NOMAD_ALLOC_ID
        ARCH  = attr.cpu.arch
      }
    }
  }
}
