job "among" {
  group "g" {
    task "t" {
      driver = "d"
      config {
        mounts = [
          {
            type = "tmpfs"
            tmpfs_options {
              size = 10000
            }
          }
        ]
      }
    }
  }
}
