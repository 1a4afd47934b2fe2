job "x" {
  dynamic "group" {
    for_each = node.class
    content {}
  }
  dynamic "groups" {
    for_each = ["a"]
    content {}
  }
  dynamic {
    for_each = []
  }
  dynamic "constraint" {
    for_each = "x"
    iterator = "quoted"
    more     = 1
    content {}
    content {}
  }
  group "g" {
    dynamic "service" {
      for_each = ["a"]
      content {
        name = services.value
        tags = [service.other]
      }
    }
    task "t" {
      driver = "raw_exec"
    }
  }
}
