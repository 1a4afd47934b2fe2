job "service-task" {
  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "sleep"
        args    = ["60"]
      }

      service {
        name                = "web-${NOMAD_GROUP_NAME}"
        provider            = "nomad"
        port                = "http"
        address_mode        = "driver"
        tags                = ["leader", "v${meta.version}"]
        canary_tags         = ["canary"]
        enable_tag_override = true
        on_update           = "ignore_warnings"
        meta {
          k = "v"
        }
        canary_meta {
          k = "c"
        }
        check {
          name                     = "alive"
          type                     = "http"
          path                     = "/health"
          port                     = 4646
          protocol                 = "https"
          method                   = "POST"
          body                     = "{\"ping\": true}"
          interval                 = "10s"
          timeout                  = "2s"
          initial_status           = "passing"
          tls_skip_verify          = true
          tls_server_name          = "web.local"
          success_before_passing   = 3
          failures_before_critical = 4
          failures_before_warning  = 2
          address_mode             = "host"
          notes                    = "is it up"
          on_update                = "require_healthy"
          header {
            Authorization = ["Basic ZWxhc3RpYzpjaGFuZ2VtZQ=="]
            X-Two         = ["a", "${NOMAD_ALLOC_ID}"]
          }
          check_restart {
            limit           = 3
            grace           = "90s"
            ignore_warnings = true
          }
        }
        check {
          type     = "script"
          command  = "/bin/bash"
          args     = ["-c", "test -f ${HEALTH_FILE}"]
          interval = "5s"
          timeout  = "2s"
        }
        check {
          type         = "grpc"
          port         = "rpc"
          grpc_service = "example.Service"
          grpc_use_tls = true
          interval     = "5s"
          timeout      = "2s"
        }
      }
    }
  }
}
