// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/supervisor"
)

const name = "script"

// scripts is the driver. It implements driver.Driver, driver.Configurer,
// driver.Signaler and driver.Inspector; what else the contract has it cannot do.
type scripts struct {
	pool *supervisor.Pool

	mu      sync.Mutex
	allowed []string
	tasks   map[string]process // started or recovered, until Destroy
}

// process is what a handle holds: enough to find the task again, or to end it.
type process struct {
	Scope  string `json:"scope"`
	PID    int    `json:"pid"`
	Start  uint64 `json:"start"`
	BootID string `json:"boot_id"`
	Cgroup string `json:"cgroup,omitempty"`
	Stdout string `json:"stdout,omitempty"`
	Stderr string `json:"stderr,omitempty"`
}

func newDriver(pool *supervisor.Pool) *scripts {
	return &scripts{pool: pool, tasks: map[string]process{}}
}

// Info says who the driver is, what it can do, and how it and its tasks are
// configured. What does not fit the schemas never gets here.
func (*scripts) Info() driver.Info {
	return driver.Info{
		Name: name, Version: "0.1.0",
		Capabilities: driver.Capabilities{SendSignals: true, IdempotentStart: true},
		TaskSchema: driver.Object(map[string]*driver.Schema{
			"script":      driver.Attr("string", true),
			"interpreter": driver.Default(driver.Attr("list(string)", false), `["/bin/sh", "-c"]`),
		}),
		ConfigSchema: driver.Object(map[string]*driver.Schema{
			"interpreters": driver.Default(driver.Attr("list(string)", false), `[]`),
		}),
	}
}

// Configure takes the operator's list of interpreters; an empty one allows all.
func (d *scripts) Configure(_ context.Context, setup driver.Setup) error {
	var cfg struct{ Interpreters []string }
	if err := json.Unmarshal(setup.Config, &cfg); err != nil {
		return fmt.Errorf("script: configuration: %w", err)
	}
	for _, path := range cfg.Interpreters {
		if !strings.HasPrefix(path, "/") {
			return fmt.Errorf("script: interpreters: %q must be an absolute path", path)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.allowed = cfg.Interpreters
	return nil
}

// Fingerprint says what the node can do: once now, and again when that changes,
// which here it never does.
func (*scripts) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	ch := make(chan driver.Fingerprint, 1)
	ch <- driver.Fingerprint{Health: driver.Healthy, Description: "scripts run", Attributes: map[string]string{"driver." + name: "1"}}
	context.AfterFunc(ctx, func() { close(ch) })
	return ch, nil
}

// Start starts the task. The supervisor makes it idempotent: it has each ID once.
func (d *scripts) Start(ctx context.Context, cfg driver.TaskConfig) (*driver.Handle, error) {
	var task struct {
		Script      string
		Interpreter []string
	}
	if err := json.Unmarshal(cfg.Config, &task); err != nil {
		return nil, fmt.Errorf("script: task configuration: %w", err)
	}
	if err := d.checkInterpreter(task.Interpreter); err != nil {
		return nil, err
	}
	spec := supervisor.Spec{
		ID: cfg.ID, Path: task.Interpreter[0], Args: append(task.Interpreter, task.Script), Env: cfg.Env, Dir: cfg.Dirs.Task,
		Stdout: cfg.Stdio.Stdout, Stderr: cfg.Stdio.Stderr, Cgroup: cfg.Cgroup,
	}
	if err := become(cfg.User, &spec); err != nil {
		return nil, err
	}
	var st supervisor.Status
	err := d.with(cfg.Scope, func(sc *supervisor.Scope) (err error) {
		st, err = sc.Start(ctx, spec)
		return err
	})
	if err != nil {
		return nil, translate(err)
	}
	p := process{Scope: cfg.Scope, PID: st.PID, Start: st.Start, BootID: st.BootID, Cgroup: spec.Cgroup, Stdout: spec.Stdout, Stderr: spec.Stderr}
	state, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	d.keep(cfg.ID, p)
	return &driver.Handle{Driver: name, TaskID: cfg.ID, Version: 1, PID: p.PID, State: state}, nil
}

func (d *scripts) checkInterpreter(argv []string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case len(argv) == 0 || !strings.HasPrefix(argv[0], "/"):
		return fmt.Errorf("script: interpreter %q must begin with the absolute path of a program", argv)
	case len(d.allowed) > 0 && !slices.Contains(d.allowed, argv[0]):
		return fmt.Errorf("script: interpreter %s is not allowed on this node: use %s", argv[0], strings.Join(d.allowed, ", "))
	}
	return nil
}

// become makes the task run as the user that the job names; without one it runs as
// this program does.
func become(name string, spec *supervisor.Spec) error {
	if name == "" {
		return nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return fmt.Errorf("script: %w", err)
	}
	groups, err := u.GroupIds()
	if err != nil {
		return driver.Recoverable(fmt.Errorf("script: groups of %s: %w", name, err))
	}
	spec.SetUser = true
	if spec.UID, err = strconv.Atoi(u.Uid); err != nil {
		return fmt.Errorf("script: uid of %s: %w", name, err)
	}
	if spec.GID, err = strconv.Atoi(u.Gid); err != nil {
		return fmt.Errorf("script: gid of %s: %w", name, err)
	}
	for _, g := range groups {
		if n, err := strconv.Atoi(g); err == nil && n != spec.GID {
			spec.Groups = append(spec.Groups, n)
		}
	}
	return nil
}
