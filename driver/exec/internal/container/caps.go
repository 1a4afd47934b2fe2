// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// capNames are the kernel's, by number.
var capNames = strings.Fields(`CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL CAP_SETGID
	CAP_SETUID CAP_SETPCAP CAP_LINUX_IMMUTABLE CAP_NET_BIND_SERVICE CAP_NET_BROADCAST CAP_NET_ADMIN CAP_NET_RAW CAP_IPC_LOCK
	CAP_IPC_OWNER CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_CHROOT CAP_SYS_PTRACE CAP_SYS_PACCT CAP_SYS_ADMIN CAP_SYS_BOOT
	CAP_SYS_NICE CAP_SYS_RESOURCE CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_MKNOD CAP_LEASE CAP_AUDIT_WRITE CAP_AUDIT_CONTROL
	CAP_SETFCAP CAP_MAC_OVERRIDE CAP_MAC_ADMIN CAP_SYSLOG CAP_WAKE_ALARM CAP_BLOCK_SUSPEND CAP_AUDIT_READ CAP_PERFMON
	CAP_BPF CAP_CHECKPOINT_RESTORE`)

// defaultCaps are what root has in a container, and what cap_add may name where the
// operator says nothing: they reach no further than the task's own files, users and
// ports.
var defaultCaps = strings.Fields(`CAP_AUDIT_WRITE CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_FSETID CAP_KILL
	CAP_NET_BIND_SERVICE CAP_SETFCAP CAP_SETGID CAP_SETPCAP CAP_SETUID CAP_SYS_CHROOT`)

// capName is the kernel's name of a capability given in any case, with or without
// CAP_; "" if there is none.
func capName(s string) string {
	n := strings.ToUpper(strings.TrimSpace(s))
	if !strings.HasPrefix(n, "CAP_") {
		n = "CAP_" + n
	}
	if slices.Contains(capNames, n) {
		return n
	}
	return ""
}

func isAll(s string) bool { return strings.EqualFold(strings.TrimSpace(s), "all") }

// capSets are what a process gets.
type capSets struct{ bounding, effective, ambient []string }

// capabilities works out cap_add and cap_drop. Root has the default set, less what
// is dropped, plus what is added. Another user has what was added alone, and holds
// it for good (ambient); the bounding set is the same, but where setuid programs
// may change users, who then find what root would have had.
func capabilities(p privileges, allowed []string, root bool) (capSets, error) {
	var errs []error
	base := slices.Clone(defaultCaps)
	for i, s := range p.CapDrop {
		name := capName(s)
		switch {
		case isAll(s):
			base = nil
		case name == "":
			errs = append(errs, &FieldError{Field: fmt.Sprintf("config.cap_drop[%d]", i), Value: s, Allowed: `must be a capability such as net_raw, or "all"`})
		default:
			base = slices.DeleteFunc(base, func(c string) bool { return c == name })
		}
	}
	may, every := allowedCaps(allowed)
	var added []string
	for i, s := range p.CapAdd {
		name := capName(s)
		field := fmt.Sprintf("config.cap_add[%d]", i)
		switch {
		case isAll(s) && every:
			added = append(added, capNames...)
		case isAll(s), name != "" && !slices.Contains(may, name):
			errs = append(errs, &FieldError{Field: field, Value: s, Allowed: "this node allows " + strings.ToLower(strings.Join(may, " "))})
		case name == "":
			errs = append(errs, &FieldError{Field: field, Value: s, Allowed: `must be a capability such as net_raw, or "all"`})
		default:
			added = append(added, name)
		}
	}
	added = sorted(added)
	both := sorted(append(slices.Clone(base), added...))
	sets := capSets{bounding: added, effective: added, ambient: added}
	if root {
		sets = capSets{bounding: both, effective: both}
	} else if !p.NoNewPrivs {
		sets.bounding = both
	}
	return sets, errors.Join(errs...)
}

func allowedCaps(list []string) (names []string, every bool) {
	if len(list) == 0 {
		list = defaultCaps
	}
	for _, s := range list {
		if isAll(s) {
			return capNames, true
		}
		if n := capName(s); n != "" {
			names = append(names, n)
		}
	}
	return sorted(names), false
}

func sorted(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}
