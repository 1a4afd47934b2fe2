// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

// defaultEntries are what a task without an image sees of the host: its programs,
// and of /etc what common programs read. Files there that not everybody may read
// are left out whatever the list says.
func defaultEntries() []Entry {
	var out []Entry
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/opt"} {
		out = append(out, Entry{Source: dir, Target: dir})
	}
	for _, name := range []string{
		"alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version", "fonts", "gai.conf",
		"group", "host.conf", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "localtime",
		"magic", "mime.types", "networks", "nsswitch.conf", "os-release", "passwd", "perl", "pki", "profile", "profile.d",
		"protocols", "python3", "rpc", "services", "shells", "ssl", "terminfo", "timezone", "xdg",
	} {
		out = append(out, Entry{Source: "/etc/" + name, Target: "/etc/" + name})
	}
	return out
}

// masked and readOnly are parts of /proc and /sys that tell of the host or change it.
var (
	masked = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/kmsg", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/proc/kallsyms", "/proc/config.gz",
		"/sys/firmware", "/sys/devices/virtual/powercap", "/sys/kernel/debug", "/sys/kernel/tracing",
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
