job "volumes" {
  group "app" {
    volume "data" {
      type            = "csi"
      source          = "csi-volume"
      read_only       = false
      attachment_mode = "file-system"
      access_mode     = "single-node-writer"
      per_alloc       = true
      mount_options {
        fs_type     = "ext4"
        mount_flags = ["noatime", "ro"]
      }
    }
    volume "certs" {
      type   = "host"
      source = "ca-certificates"
      sticky = true
    }

    task "main" {
      driver = "raw_exec"
      config {
        command = "true"
      }
      volume_mount {
        volume           = "data"
        destination      = "/srv"
        read_only        = true
        propagation_mode = "host-to-task"
        selinux_label    = "Z"
      }
      volume_mount {
        volume      = "certs"
        destination = "${NOMAD_TASK_DIR}/certs"
      }
    }
  }
}
