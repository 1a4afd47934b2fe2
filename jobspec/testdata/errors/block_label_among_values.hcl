job "equals" {
  group "g" {
    network = {
      port "http" {
        to = 80
      }
    }
  }
}
