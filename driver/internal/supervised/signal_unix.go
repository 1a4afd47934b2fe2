// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package supervised

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/nodekeep/nodekeep/driver"
)

// names are the signals a person may send, without SIG.
func names() map[string]syscall.Signal {
	return map[string]syscall.Signal{
		"ABRT": syscall.SIGABRT, "ALRM": syscall.SIGALRM, "BUS": syscall.SIGBUS, "CHLD": syscall.SIGCHLD,
		"CONT": syscall.SIGCONT, "FPE": syscall.SIGFPE, "HUP": syscall.SIGHUP, "ILL": syscall.SIGILL,
		"INT": syscall.SIGINT, "IO": syscall.SIGIO, "KILL": syscall.SIGKILL, "PIPE": syscall.SIGPIPE,
		"PROF": syscall.SIGPROF, "QUIT": syscall.SIGQUIT, "SEGV": syscall.SIGSEGV, "STOP": syscall.SIGSTOP,
		"SYS": syscall.SIGSYS, "TERM": syscall.SIGTERM, "TRAP": syscall.SIGTRAP, "TSTP": syscall.SIGTSTP,
		"TTIN": syscall.SIGTTIN, "TTOU": syscall.SIGTTOU, "URG": syscall.SIGURG, "USR1": syscall.SIGUSR1,
		"USR2": syscall.SIGUSR2, "VTALRM": syscall.SIGVTALRM, "WINCH": syscall.SIGWINCH,
		"XCPU": syscall.SIGXCPU, "XFSZ": syscall.SIGXFSZ,
	}
}

// signalByName finds a signal by its name, in any case, with or without SIG.
func signalByName(name string) (syscall.Signal, error) {
	all := names()
	if n, err := strconv.Atoi(name); err == nil && n >= 1 && n <= 64 {
		return syscall.Signal(n), nil
	}
	if sig, ok := all[strings.TrimPrefix(strings.ToUpper(name), "SIG")]; ok {
		return sig, nil
	}
	return 0, fmt.Errorf("%w %q: known are 1 to 64 and SIG%s (also without SIG)", driver.ErrUnknownSignal, name,
		strings.Join(slices.Sorted(maps.Keys(all)), ", SIG"))
}
