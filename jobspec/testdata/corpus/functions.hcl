job "functions" {
  meta {
    numeric    = "${abs(-1)} ${ceil(1.2)} ${floor(1.8)} ${log(8, 2)} ${max(1, 3)} ${min(1, 3)} ${parseint("ff", 16)} ${pow(2, 3)} ${signum(-5)}"
    strings    = join("|", [chomp("a\n"), format("%03d", 7), lower("A"), upper("b"), title("c d"), trim("?x?", "?"), trimprefix("xy", "x"), trimsuffix("xy", "y"), trimspace(" z ")])
    more       = join("|", [replace("abc", "b", "-"), regex_replace("a1", "[0-9]", "#"), substr("hello", 1, 3), strrev("abc"), strlen("abc"), indent(2, "a\nb"), regex("[a-z]+", "12ab")])
    lists      = jsonencode([chunklist(["a", "b", "c"], 2), coalesce(null, "x"), coalescelist([], ["y"]), compact(["", "z"]), distinct(["a", "a"]), element(["p", "q"], 3), flatten([["a"], ["b"]])])
    sets       = jsonencode([setunion(["a"], ["b"]), setintersection(["a", "b"], ["b"]), setproduct(["a"], ["1", "2"]), setsubtract(["a", "b"], ["a"]), sort(["b", "a"]), reverse(["1", "2"]), slice(["a", "b"], 0, 1)])
    maps       = jsonencode([keys({ a = 1 }), values({ a = 1 }), lookup({ a = 1 }, "b", 2), merge({ a = 1 }, { b = 2 }), zipmap(["k"], ["v"]), contains(["a"], "a"), index(["a", "b"], 1), length("abc")])
    encodings  = join("|", [base64encode("hi"), base64decode("aGk="), urlencode("a b"), jsondecode("[1]")[0], yamldecode("a: 1").a, csvdecode("h\n1")[0].h])
    yaml       = yamlencode({ a = [1, "x"] })
    hashes     = join("|", [md5("x"), sha1("x"), sha256("x"), sha512("x"), uuidv5("dns", "example.org")])
    dates      = "${formatdate("YYYY-MM-DD", "2026-01-02T03:04:05Z")} ${timeadd("2026-01-02T03:04:05Z", "1h")}"
    networks   = join("|", [cidrhost("10.0.0.0/8", 2), cidrnetmask("10.0.0.0/8"), cidrsubnet("10.0.0.0/8", 8, 2), join(",", cidrsubnets("10.0.0.0/8", 8, 8))])
    matches    = join(",", regexall("[a-z]", "1a2b"))
    conversion = jsonencode([tostring(1), tonumber("2"), tobool("true"), tolist(["a"]), tomap({ a = 1 }), toset(["s"])])
    splitting  = join("+", split(",", "a,b"))
    formatted  = join(",", formatlist("%s!", ["a", "b"]))
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
    }
  }
}
