job "colon" {
  group: "g"
}
