job "config-attribute" {
  group "app" {
    task "main" {
      driver = "raw_exec"

      config = {
        command = "x"
        "a.b"   = [1, { c = "${NOMAD_A}" }]
      }


    }
  }
}
