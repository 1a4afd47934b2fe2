job "empty-blocks" {
  group "app" {
    network {}
    ephemeral_disk {}
    update {}

    task "main" {
      driver = "raw_exec"

      env {}
      meta = {}
      config {}
      resources {}
      restart {}
      logs {}
      vault {}
      service {}
      user = ""
    }
  }
}
