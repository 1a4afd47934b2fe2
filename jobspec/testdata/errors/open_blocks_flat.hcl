job "flat" {
group "g" {
}
