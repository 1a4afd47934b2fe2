// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"slices"
	"strconv"
	"strings"
)

// signals are the names of Linux, each at its number less one. Others have no
// numbers that mean the same on every architecture; they are told by number.
func signals() []string {
	return []string{
		"SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGUSR1",
		"SIGSEGV", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGSTKFLT", "SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP",
		"SIGTTIN", "SIGTTOU", "SIGURG", "SIGXCPU", "SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGIO", "SIGPWR", "SIGSYS",
	}
}

// SignalNumber is the number of a signal of Linux by its name ("SIGTERM") or its
// number ("15", 1 to 64), 0 for what is neither. It is for reading exits; names
// of signals to be sent are the driver's to know.
func SignalNumber(signal string) int {
	if n, err := strconv.Atoi(signal); err == nil && n >= 1 && n <= 64 && signal == strconv.Itoa(n) {
		return n
	}
	return slices.Index(signals(), signal) + 1
}

// SignalName is the name of a signal of Linux by its number, or by its name, with or
// without SIG and in any case; what is neither is returned as it is. It is for
// telling people.
func SignalName(signal string) string {
	name := "SIG" + strings.TrimPrefix(strings.ToUpper(signal), "SIG")
	if n := SignalNumber(signal); n > 0 && n <= len(signals()) {
		return signals()[n-1]
	}
	if slices.Contains(signals(), name) {
		return name
	}
	return signal
}

// sendable says whether some driver may know a signal: drivers take names with and
// without SIG, in any case, and have more of them than have one number everywhere.
func sendable(signal string) bool {
	name := "SIG" + strings.TrimPrefix(strings.ToUpper(signal), "SIG")
	return SignalNumber(signal) != 0 || SignalNumber(name) != 0 || strings.HasPrefix(name, "SIGRT") ||
		slices.Contains([]string{"SIGPOLL", "SIGIOT", "SIGCLD", "SIGLOST", "SIGUNUSED", "SIGNULL"}, name)
}
