job "vault-inherited" {
  vault {
    policies = ["of-the-job"]
  }
  secret "shared" {
    provider = "nomad"
    path     = "shared/x"
  }
  group "a" {
    vault {
      policies = ["of-the-group"]
    }
    consul {
      namespace = "team"
    }
    task "own" {
      driver = "raw_exec"
      vault {
        policies = ["own"]
      }
      consul {}
    }
    task "none" {
      driver = "raw_exec"
    }
  }
  group "b" {
    task "none" {
      driver = "raw_exec"
      secret "shared" {
        provider = "vault"
      }
    }
  }
}
