job "artifact" {
  group "app" {
    task "main" {
      driver = "raw_exec"

      config {
        command = "sleep"
        args    = ["60"]
      }

      artifact {
        source      = "https://example.org/file-${attr.cpu.arch}.tar.gz"
        destination = "local/some-directory"
        mode        = "dir"
        options {
          checksum = "md5:df6a4178aec9fbdc1d6d7e3634d1bc33"
        }
        headers {
          User-Agent    = "nodekeep-[${NOMAD_JOB_ID}]"
          X-Nomad-Alloc = "${NOMAD_ALLOC_ID}"
        }
        insecure = true
        chown    = true
      }
      artifact {
        source = "git::https://example.org/repo?ref=main"
        options = {
          "aws_access_key.id" = "x"
        }
      }
    }
  }
}
