job "decimal" {
  group "g" {
    task "t" {
      driver = "d"
      config {
        ratio = .3
      }
    }
  }
}
