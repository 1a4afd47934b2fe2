job "" {
  group "" {
    task "" {
      driver = ""
    }
  }
}
