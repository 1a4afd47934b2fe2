job "web" {
  group "api" {
    count = = 2
  }
}
