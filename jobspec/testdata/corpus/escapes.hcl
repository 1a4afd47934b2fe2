job "escapes" {
  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "echo"
        args = [
          "$${literal} %%{literal}", "${NOMAD_TASK_DIR}/$x", "100%", "a\rb\r${node.class}",
          "%{ if node.class == "big" }big%{ else }small%{ endif }", "${attr.n > 3 ? "many" : "few"}", "\"q\" \\ \t",
        ]
      }

      env {
        A = "$${NOT_HERE} %%{ if } $HOME $(x) $$ 100%"
        B = "tab\tquote\"back\\slash\nline \u00e9 \U0001F600"
        C = "$${X}${NOMAD_A}"
        D = "${not_known_name}"
        "E.F" = "a name in quotes"
      }
      template {
        data        = "$${A} ${B} %%{x} $"
        destination = "local/x"
      }
    }
  }
}
