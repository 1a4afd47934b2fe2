# a comment
// another
/* and
   another */
job "comments" { # here
  group "g" { /* inside */
    task "t" {
      driver = "raw_exec" // there
    }
  }
}
