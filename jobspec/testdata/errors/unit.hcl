job "unit" {
  group "g" {
    restart {
      delay = 10s
    }
  }
}
