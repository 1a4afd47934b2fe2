job "web" "extra" {
}
job "a" {
  group {
    task "x" {}
  }
  group "g" {
    task "x" "y" {}
    restart {}
    restart {}
    meta "label" {
      nested {}
    }
  }
  group "g" {
    task "t" {
      config {}
      config {}
      lifecycle {}
    }
  }
}
job "b" {
  group "g" {}
}
