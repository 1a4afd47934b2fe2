job "parameterized" {
  type = "batch"
  parameterized {
    payload       = "required"
    meta_required = ["input"]
    meta_optional = ["retries", "mode"]
  }
  meta {
    mode = "fast"
  }

  group "app" {
    task "main" {
      driver = "raw_exec"
      config {
        command = "cat"
        args    = ["local/input.json"]
      }
      dispatch_payload {
        file = "input.json"
      }
    }
  }
}
