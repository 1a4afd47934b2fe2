job "connect-gateway" {
  group "ingress" {
    network {
      mode = "bridge"
      port "inbound" {
        static = 8080
        to     = 8080
      }
    }
    service {
      name = "my-ingress"
      port = "8080"
      connect {
        gateway {
          proxy {
            connect_timeout                     = "500ms"
            envoy_gateway_bind_tagged_addresses = true
            envoy_gateway_no_default_bind       = true
            envoy_dns_discovery_type            = "STRICT_DNS"
            envoy_gateway_bind_addresses "uuid-api" {
              address = "0.0.0.0"
              port    = 8080
            }
            envoy_gateway_bind_addresses "admin" {
              address = "127.0.0.1"
              port    = 9090
            }
            config {
              a = 1
            }
          }
          ingress {
            tls {
              enabled         = true
              tls_min_version = "TLSv1_2"
              tls_max_version = "TLSv1_3"
              cipher_suites   = ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]
              sds {
                cluster_name  = "sds"
                cert_resource = "cert"
              }
            }
            listener {
              port     = 8080
              protocol = "http"
              service {
                name                    = "uuid-api"
                hosts                   = ["example.com", "*.example.com"]
                max_connections         = 10
                max_pending_requests    = 20
                max_concurrent_requests = 30
                tls {
                  sds {
                    cluster_name = "other"
                  }
                }
                request_headers {
                  add {
                    X-A = "1"
                  }
                  set = {
                    "X.B" = "2"
                  }
                  remove = ["X-C"]
                }
                response_headers {
                  remove = ["Server"]
                }
              }
            }
          }
        }
      }
    }
  }
  group "terminating" {
    service {
      name = "api-gateway"
      connect {
        gateway {
          terminating {
            service {
              name      = "count-api"
              ca_file   = "/ca.pem"
              cert_file = "/cert.pem"
              key_file  = "/key.pem"
              sni       = "count.local"
            }
          }
        }
      }
    }
  }
  group "mesh" {
    service {
      name = "mesh-gateway"
      connect {
        gateway {
          mesh {}
        }
      }
    }
  }
}
