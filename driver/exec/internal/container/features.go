// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import "strings"

// Features is what this machine and this program can isolate with, as Probe found
// it. A feature's text is "" if it is there, else why it is not.
type Features struct {
	Cgroup      string   `json:"cgroup"`      // v1, v2, hybrid or none
	Controllers []string `json:"controllers"` // that a limit can be set with
	Seccomp     string   `json:"seccomp"`
	UserNS      string   `json:"user_namespaces"`
	IDMap       string   `json:"id_mapped_mounts"` // what a user namespace needs for the task's directories
	Overlay     string   `json:"overlay"`          // what an image needs
	Swap        string   `json:"swap_limit"`
	PSI         string   `json:"psi"`
	Root        bool     `json:"root"` // this process may mount and change users
	// Unusable says why no container can be made at all; "" if one can.
	Unusable string `json:"unusable,omitempty"`
}

// Missing lists what is not there, each with why.
func (f Features) Missing() []string {
	var out []string
	for _, x := range []struct{ name, why string }{
		{"containers", f.Unusable}, {"seccomp", f.Seccomp}, {"user namespaces", f.UserNS}, {"id-mapped mounts", f.IDMap},
		{"overlay", f.Overlay}, {"swap limit", f.Swap}, {"PSI", f.PSI},
	} {
		if x.why != "" {
			out = append(out, x.name+": "+x.why)
		}
	}
	if !f.Root {
		out = append(out, "root: this process may not mount or become another user; tasks run as its own, in a user namespace")
	}
	return out
}

// has says whether a controller can limit.
func (f Features) has(controller string) bool {
	return strings.Contains(" "+strings.Join(f.Controllers, " ")+" ", " "+controller+" ")
}
