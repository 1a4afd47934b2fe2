// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package rawexec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/supervisor"
)

// taskConfig is Task.Config as decoded by the schema.
type taskConfig struct {
	Command   string   `json:"command"`
	Args      []string `json:"args"`
	WorkDir   string   `json:"work_dir"`
	DeniedEnv []string `json:"denied_envvars"`
	NoCgroups bool     `json:"no_cgroups"`
	OOMScore  int      `json:"oom_score_adj"`
}

func (c taskConfig) validate() error {
	errs := []error{patterns("config.denied_envvars", c.DeniedEnv)}
	if c.Command == "" {
		errs = append(errs, errors.New("rawexec: config.command is empty: it must name the program to run"))
	}
	if c.OOMScore < -1000 || c.OOMScore > 1000 {
		errs = append(errs, fmt.Errorf("rawexec: config.oom_score_adj is %d: must be from -1000 to 1000", c.OOMScore))
	}
	for i, arg := range append([]string{c.Command, c.WorkDir}, c.Args...) {
		if strings.ContainsRune(arg, 0) {
			errs = append(errs, fmt.Errorf("rawexec: config: value %d (command, work_dir, args) holds a NUL byte, which no program can be given", i))
		}
	}
	return errors.Join(errs...)
}

// Start implements driver.Driver.
func (d *rawexec) Start(ctx context.Context, cfg driver.TaskConfig) (*driver.Handle, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	var tc taskConfig
	if err := json.Unmarshal(cfg.Config, &tc); err != nil {
		return nil, fmt.Errorf("rawexec: config of task %q: %w", cfg.Name, err)
	}
	sp, err := d.spec(cfg, tc)
	if err != nil {
		return nil, err
	}
	st, err := d.pool.Scope(cfg.Scope).Start(ctx, sp)
	if err != nil {
		return nil, startError(sp, err)
	}
	r := record{PID: st.PID, Start: st.Start, BootID: st.BootID, Scope: cfg.Scope,
		Cgroup: sp.Cgroup, Stdout: sp.Stdout, Stderr: sp.Stderr, ExitDir: sp.ExitDir}
	raw, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("rawexec: handle: %w", err)
	}
	d.keep(cfg.ID, r)
	return &driver.Handle{Driver: Name, TaskID: cfg.ID, Version: recordVersion, PID: st.PID, State: raw}, nil
}

// startError tells what the task's author did (final) from what passes by itself.
func startError(sp supervisor.Spec, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("rawexec: start %s: %w", sp.Path, err)
	}
	err = translate(err)
	if errors.Is(err, driver.ErrForeignScope) || driver.IsRecoverable(err) {
		return err
	}
	return fmt.Errorf("rawexec: start %s: %w", sp.Path, err)
}

// spec is the process to start. It touches nothing but the mode of a program in
// the task's own directory.
func (d *rawexec) spec(cfg driver.TaskConfig, tc taskConfig) (supervisor.Spec, error) {
	sp := supervisor.Spec{ID: cfg.ID, Stdout: cfg.Stdio.Stdout, Stderr: cfg.Stdio.Stderr,
		Cgroup: cfg.Cgroup, OOMScoreAdj: tc.OOMScore, Args: append([]string{tc.Command}, tc.Args...)}
	if err := tc.validate(); err != nil {
		return sp, err
	}
	if d.cfg.NoCgroups || tc.NoCgroups {
		sp.Cgroup = ""
	}
	if cfg.Dirs.Alloc != "" {
		// The parent of the shared directory: on disk and not the task's to write.
		sp.ExitDir = filepath.Dir(cfg.Dirs.Alloc)
	}
	for _, kv := range cfg.Env {
		if name, _, _ := strings.Cut(kv, "="); !denied(name, d.cfg.DeniedEnv, tc.DeniedEnv) {
			sp.Env = append(sp.Env, kv)
		}
	}
	var err error
	if sp.Dir, err = workDir(cfg.Dirs, tc.WorkDir); err != nil {
		return sp, err
	}
	if sp.Path, err = program(cfg.Dirs, tc.Command, sp.Env); err != nil {
		return sp, err
	}
	return sp, d.user(cfg.User, &sp)
}

// user resolves names to the numbers that the supervisor needs.
func (d *rawexec) user(name string, sp *supervisor.Spec) error {
	if name == "" {
		return nil
	}
	a, err := d.users.Lookup(name)
	if err != nil {
		return fmt.Errorf("rawexec: user %q: %w", name, err)
	}
	if slices.Contains(d.cfg.DeniedUsers, a.Name) || slices.Contains(d.cfg.DeniedUsers, strconv.Itoa(a.UID)) {
		return fmt.Errorf("rawexec: user %q may not be used on this node (denied: %s)", name, strings.Join(d.cfg.DeniedUsers, ", "))
	}
	if a.UID == os.Geteuid() && a.GID == os.Getegid() && a.UID != 0 {
		return nil // already so, and nobody but root may set it
	}
	sp.SetUser, sp.UID, sp.GID, sp.Groups = true, a.UID, a.GID, a.Groups
	return nil
}

func workDir(dirs driver.Dirs, dir string) (string, error) {
	switch {
	case dir == "" && dirs.Task == "":
		return "/", nil
	case !filepath.IsAbs(dir):
		dir = filepath.Join(dirs.Task, dir)
	}
	if st, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("rawexec: config.work_dir: %w", err)
	} else if !st.IsDir() {
		return "", fmt.Errorf("rawexec: config.work_dir %q is not a directory", dir)
	}
	return dir, nil
}

// program finds the file to run (see the package's doc).
func program(dirs driver.Dirs, command string, env []string) (string, error) {
	if filepath.IsAbs(command) {
		return command, nil
	}
	if dirs.Task != "" {
		for _, dir := range []string{dirs.Local, dirs.Task} {
			name := filepath.Join(dir, command)
			if st, err := os.Stat(name); err == nil && st.Mode().IsRegular() {
				return name, executable(name, st.Mode())
			}
		}
	}
	if !strings.Contains(command, "/") {
		for _, dir := range filepath.SplitList(variable(env, "PATH")) {
			name := filepath.Join(dir, command)
			if st, err := os.Stat(name); filepath.IsAbs(dir) && err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
				return name, nil
			}
		}
	}
	return "", fmt.Errorf("rawexec: config.command %q is neither in the task's directory nor in its PATH (%s): %w",
		command, variable(env, "PATH"), fs.ErrNotExist)
}

// executable makes a file of the task's own directory one that can be run, as an
// artifact often is not.
func executable(name string, mode fs.FileMode) error {
	if mode&0o111 != 0 {
		return nil
	}
	if err := os.Chmod(name, mode.Perm()|0o111); err != nil {
		return fmt.Errorf("rawexec: make the command executable: %w", err)
	}
	return nil
}

// variable is the value of the last K=V of that name.
func variable(env []string, name string) string {
	for _, kv := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}
