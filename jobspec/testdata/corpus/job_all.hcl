job "job-all" {
  id          = "job-all/v2"
  name        = "All of a job"
  type        = "service"
  namespace   = "prod"
  region      = "eu"
  datacenters = ["dc1", "dc2"]
  node_pool   = "gpu"
  priority    = 70
  all_at_once = true

  meta {
    owner = "team-a"
  }

  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "true"
      }
    }
  }
}
