// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

// defaultEntries are what a task without an image sees of the host: its programs,
// and of /etc what common programs read. Files there that not everybody may read
// are left out whatever the list says. Each directory costs a mount at every start,
// each file a copy: the list is short.
func defaultEntries() []Entry {
	var out []Entry
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/opt"} {
		out = append(out, Entry{Source: dir, Target: dir})
	}
	for _, name := range []string{
		"alternatives", "crypto-policies", "fonts", "gai.conf", "group", "host.conf", "ld.so.cache", "ld.so.conf", "locale.alias", "locale.conf",
		"localtime", "mime.types", "nsswitch.conf", "os-release", "passwd", "profile", "protocols", "python3", "services", "timezone",
		// Certificates, without the keys that lie beside them.
		"ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf", "pki/ca-trust", "pki/java", "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf",
	} {
		out = append(out, Entry{Source: "/etc/" + name, Target: "/etc/" + name})
	}
	return out
}

// masked and readOnly are parts of /proc and /sys that tell of the host or change it.
var (
	masked = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/proc/kallsyms",
		"/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readOnly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// standardDevices are in every container.
func standardDevices() []Device {
	var out []Device
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		out = append(out, Device{Source: "/dev/" + name, Target: "/dev/" + name, Permissions: "rwm"})
	}
	return out
}
