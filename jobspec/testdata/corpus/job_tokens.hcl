job "job-tokens" {
  consul_token = "c-token"
  vault_token  = "v-token"

  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "true"
      }
    }
  }
}
