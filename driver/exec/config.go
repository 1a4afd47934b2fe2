// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package exec

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/nodekeep/nodekeep/driver/exec/internal/container"
)

// Config is what the host decides. The zero value is the strictest: no task as
// root, none of the host's namespaces, the default capabilities alone.
type Config struct {
	// Disabled refuses starts. Tasks that run are recovered, stopped and destroyed.
	Disabled bool
	// CreatorExe is the program that makes containers. "" is nodekeep-exec beside this
	// program's own file if there is one, else this program, started again.
	CreatorExe string
	// BinDir keeps a copy of this program while it makes containers, best a directory on
	// disk and a hard link: without one, starts become slow once an upgrade has
	// replaced the program's file. "" keeps none.
	BinDir string

	Policy Policy
	// IDs are the users that user namespaces are made of; Size 0 refuses tasks that
	// ask for one.
	IDs IDs
	// PidsLimit holds for tasks that ask for none; 0 is no limit.
	PidsLimit int64
	// Entries are what a task without an image sees of the host, read-only; none is
	// the usual directories of programs, and of /etc what common programs read.
	Entries []Entry
	// ResolvConf is for tasks whose alloc has no DNS of its own; default
	// /etc/resolv.conf.
	ResolvConf string
}

// Policy is what tasks may ask for.
type Policy struct {
	// AllowCaps are what cap_add may name; none is the default set, "all" is all.
	AllowCaps []string
	// DefaultUser runs tasks that name none; default nobody.
	DefaultUser string
	// DeniedUsers may not be run as: names, uids and ranges of uids such as "1-99".
	DeniedUsers []string
	// DeniedEnv are variables no task gets: shell patterns, such as "AWS_*".
	DeniedEnv []string

	AllowRoot       bool // tasks as uid 0 of the host; in a user namespace none needs leave
	AllowHostPID    bool // pid_mode = "host"
	AllowHostIPC    bool // ipc_mode = "host"
	AllowSetuid     bool // no_new_privs = false
	AllowUnconfined bool // seccomp = "unconfined"
	DynamicUsers    bool // a task without a user may be given one of its own, if the agent has a range of them
}

// Entry is a directory or file of the host that tasks see.
type Entry = container.Entry

// IDs maps users and groups of a user namespace to the host's.
type IDs = container.IDs

// validate lists all faults.
func (c Config) validate() error {
	var errs []error
	for i, p := range c.Policy.DeniedEnv {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			errs = append(errs, fmt.Errorf("exec: Config.Policy.DeniedEnv[%d] %q: must be a name or a shell pattern such as AWS_*", i, p))
		}
	}
	for i, u := range c.Policy.DeniedUsers {
		if u == "" || strings.ContainsAny(u, ":/ ") {
			errs = append(errs, fmt.Errorf("exec: Config.Policy.DeniedUsers[%d] %q: must be a user name, a uid or a range of uids such as 1-99", i, u))
		}
	}
	if c.CreatorExe != "" {
		if st, err := os.Stat(c.CreatorExe); err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 || !filepath.IsAbs(c.CreatorExe) {
			errs = append(errs, fmt.Errorf("exec: Config.CreatorExe %q must be the absolute path of a program: %w", c.CreatorExe, errors.Join(err, os.ErrInvalid)))
		}
	}
	if c.BinDir != "" && !filepath.IsAbs(c.BinDir) {
		errs = append(errs, fmt.Errorf("exec: Config.BinDir %q must be an absolute path", c.BinDir))
	}
	if c.PidsLimit < 0 {
		errs = append(errs, fmt.Errorf("exec: Config.PidsLimit is %d: must not be below 0", c.PidsLimit))
	}
	return errors.Join(errs...)
}
