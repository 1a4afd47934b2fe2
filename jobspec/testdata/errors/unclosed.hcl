job "web" {
  group "api" {
	task "tabs" {
	  env { A = "x }
	}
  }
}
