job "csi-plugin" {
  group "app" {
    task "main" {
      driver = "docker"

      config {
        image = "csi"
      }

      csi_plugin {
        id                     = "csi-hostpath"
        type                   = "monolith"
        mount_dir              = "/csi"
        stage_publish_base_dir = "/local/csi"
        health_timeout         = "30s"
      }
    }
  }
}
