job "placeholder" {
  group "g" {
    task "t" {
      ...
    }
  }
}
