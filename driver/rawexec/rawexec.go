// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package rawexec is the driver "raw_exec": plain processes of the host, without
// isolation. Its tasks belong to the supervisor of their scope (package
// supervisor), which holds their exits and logs while no agent lives.
//
//	task {
//	  driver = "raw_exec"
//	  user   = "www-data"                        # default: the agent's own
//	  config {
//	    command         = "bin/server"           # required
//	    args            = ["-port", "${NOMAD_PORT_http}"]
//	    work_dir        = "local"                # default: the task's directory
//	    denied_envvars  = ["AWS_*"]              # not passed on
//	    no_cgroups      = false                  # track by session and mark only
//	    oom_score_adj   = 0
//	  }
//	}
//
// command is looked for as local/<command> in the task's directory, as <command>
// there, and in the PATH of the task's environment; with a leading slash it is
// taken as it is. args are passed on as they are.
//
// A task ends with everything it started: children in the background, in
// sessions of their own and double forks included. The stop signal (SIGTERM
// unless the job says otherwise) goes to the main process; SIGKILL after the
// kill timeout goes to all.
//
// Because a task can do what the agent's user can, the driver is off until the
// host sets Config.Enabled.
package rawexec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/account"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/supervisor"
)

// Name is how jobs name the driver.
const Name = "raw_exec"

const version = "1.0.0"

// Config is what the host decides. The zero value is a driver that refuses.
type Config struct {
	Enabled     bool
	NoCgroups   bool     // for every task, whatever it says
	DeniedEnv   []string // variables no task gets; shell patterns, such as "AWS_*"
	DeniedUsers []string // names and uids tasks may not run as
}

// validate lists all faults.
func (c Config) validate() error {
	return patterns("Config.DeniedEnv", c.DeniedEnv)
}

// New returns what an agent makes the driver with.
func New(cfg Config) func(*supervisor.Pool) (driver.Driver, error) {
	return func(pool *supervisor.Pool) (driver.Driver, error) {
		if err := cfg.validate(); err != nil {
			return nil, err
		}
		if pool == nil {
			return nil, errors.New("rawexec: a supervisor pool is required")
		}
		return &rawexec{cfg: cfg, pool: pool, users: &account.Book{}, tasks: map[string]record{}}, nil
	}
}

// record is the handle's state: enough to find the process again, or to end it.
type record struct {
	PID     int    `json:"pid"`
	Start   uint64 `json:"start"` // clock ticks since boot
	BootID  string `json:"boot_id"`
	Scope   string `json:"scope"`
	Cgroup  string `json:"cgroup,omitempty"`
	Stdout  string `json:"stdout,omitempty"`
	Stderr  string `json:"stderr,omitempty"`
	ExitDir string `json:"exit_dir,omitempty"`
}

const recordVersion = 1

func (r record) identity(id string) supervisor.Identity {
	return supervisor.Identity{ID: id, PID: r.PID, Start: r.Start, BootID: r.BootID,
		Cgroup: r.Cgroup, Stdout: r.Stdout, Stderr: r.Stderr, ExitDir: r.ExitDir}
}

func parse(h *driver.Handle) (record, error) {
	var r record
	if h.Driver != Name || h.Version > recordVersion {
		return r, fmt.Errorf("rawexec: handle of driver %q version %d is not ours (%s, at most %d)", h.Driver, h.Version, Name, recordVersion)
	}
	if err := json.Unmarshal(h.State, &r); err != nil {
		return r, fmt.Errorf("rawexec: handle of task %q: %w", h.TaskID, err)
	}
	return r, nil
}

type rawexec struct {
	cfg   Config
	pool  *supervisor.Pool
	users *account.Book

	mu    sync.Mutex
	tasks map[string]record // started or recovered by this agent, until Destroy
}

// Info implements driver.Driver.
func (d *rawexec) Info() driver.Info {
	return driver.Info{
		Name: Name, Version: version,
		Capabilities: driver.Capabilities{SendSignals: true, IdempotentStart: true, FSIsolation: driver.FSNone,
			NetIsolation: []string{"host", "group"}, NoMounts: true},
		TaskSchema: driver.Object(map[string]*driver.Schema{
			"command":        driver.Attr("string", true),
			"args":           driver.Attr("list(string)", false),
			"work_dir":       driver.Attr("string", false),
			"denied_envvars": driver.Attr("list(string)", false),
			"no_cgroups":     driver.Default(driver.Attr("bool", false), "false"),
			"oom_score_adj":  driver.Default(driver.Attr("number", false), "0"),
		}),
	}
}

// Fingerprint implements driver.Driver. Nothing changes after the first value.
func (d *rawexec) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	fp := driver.Fingerprint{Health: driver.Healthy, Description: "Healthy",
		Attributes: map[string]string{"driver.raw_exec": "1", "driver.raw_exec.version": version}}
	if err := d.usable(); err != nil {
		fp = driver.Fingerprint{Health: driver.Undetected, Description: err.Error()}
	}
	ch := make(chan driver.Fingerprint, 1)
	ch <- fp
	context.AfterFunc(ctx, func() { close(ch) })
	return ch, nil
}

func (d *rawexec) usable() error {
	if runtime.GOOS != "linux" {
		return errors.New("rawexec: needs Linux; this is " + runtime.GOOS)
	}
	if !d.cfg.Enabled {
		return errors.New("rawexec: disabled on this node: its tasks run without isolation; enable it with rawexec.Config{Enabled: true}")
	}
	return nil
}

func (d *rawexec) keep(id string, r record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tasks[id] = r
}

func (d *rawexec) task(id string) (record, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.tasks[id]
	if !ok {
		return r, fmt.Errorf("%w: %q", driver.ErrTaskNotFound, id)
	}
	return r, nil
}

// Recover implements driver.Driver.
func (d *rawexec) Recover(ctx context.Context, h *driver.Handle) error {
	r, err := parse(h)
	if err != nil {
		return err
	}
	if _, err := d.pool.Scope(r.Scope).Adopt(ctx, r.identity(h.TaskID)); err != nil {
		return translate(err)
	}
	d.keep(h.TaskID, r)
	return nil
}

// Wait implements driver.Driver.
func (d *rawexec) Wait(ctx context.Context, id string) (driver.ExitResult, error) {
	r, err := d.task(id)
	if err != nil {
		return driver.ExitResult{}, err
	}
	st, err := d.pool.Scope(r.Scope).Wait(ctx, id)
	if err != nil {
		return driver.ExitResult{}, translate(err)
	}
	return exit(st), nil
}

func exit(st supervisor.Status) driver.ExitResult {
	return driver.ExitResult{Code: st.Code, Signal: st.Signal, OOMKilled: st.OOMKilled, Err: st.Err}
}

// Stop implements driver.Driver.
func (d *rawexec) Stop(ctx context.Context, id, signal string, grace time.Duration) error {
	r, err := d.task(id)
	if err != nil {
		return err
	}
	if signal == "" {
		signal = "SIGTERM"
	}
	sig, err := signalByName(signal)
	if err != nil {
		return err
	}
	sc := d.pool.Scope(r.Scope)
	if err := sc.Stop(ctx, id, sig, grace); err != nil {
		return translate(err)
	}
	_, err = sc.Wait(ctx, id)
	return translate(err)
}

// Signal implements driver.Signaler. Names are those of kill -l, with or without SIG.
func (d *rawexec) Signal(ctx context.Context, id, signal string) error {
	sig, err := signalByName(signal)
	if err != nil {
		return err
	}
	r, err := d.task(id)
	if err != nil {
		return err
	}
	return translate(d.pool.Scope(r.Scope).Signal(ctx, id, sig))
}

// Inspect implements driver.Inspector.
func (d *rawexec) Inspect(ctx context.Context, id string) (driver.TaskStatus, error) {
	r, err := d.task(id)
	if err != nil {
		return driver.TaskStatus{}, err
	}
	st, err := d.pool.Scope(r.Scope).Lookup(ctx, id)
	if err != nil {
		return driver.TaskStatus{}, translate(err)
	}
	out := driver.TaskStatus{ID: id, State: "running", Attrs: map[string]string{
		"pid": fmt.Sprint(st.PID), "scope": r.Scope, "cgroup": r.Cgroup, "adopted": fmt.Sprint(st.Adopted)}}
	if st.Exited {
		res := exit(st)
		out.State, out.Exit = "exited", &res
	}
	return out, nil
}

// Destroy implements driver.Driver. It always asks the task's supervisor: that
// there is no connection does not mean that there is no task.
func (d *rawexec) Destroy(ctx context.Context, ref driver.TaskRef, force bool) error {
	r, proof, err := d.proof(ref)
	if err != nil {
		return err
	}
	if r.Scope == "" {
		return fmt.Errorf("%w: %q, and neither handle nor scope proves that it is gone", driver.ErrTaskNotFound, ref.ID)
	}
	sc := d.pool.Scope(r.Scope)
	st, err := sc.Lookup(ctx, ref.ID)
	if errors.Is(err, supervisor.ErrNotFound) && r.PID != 0 {
		st, err = sc.Adopt(ctx, r.identity(ref.ID))
	}
	switch {
	case errors.Is(err, supervisor.ErrNotFound), errors.Is(err, supervisor.ErrNotProved):
		d.drop(ref.ID)
		if r.Cgroup != "" {
			return cgroup.Remove(r.Cgroup)
		}
		if !proof {
			return fmt.Errorf("%w: %q", driver.ErrTaskNotFound, ref.ID)
		}
		return nil
	case err != nil:
		return translate(err)
	case !force && !st.Exited:
		return fmt.Errorf("%w: %q", driver.ErrTaskRunning, ref.ID)
	}
	if err := sc.Destroy(ctx, ref.ID); err != nil && !errors.Is(err, supervisor.ErrNotFound) {
		return translate(err)
	}
	d.drop(ref.ID)
	if r.Cgroup != "" {
		return cgroup.Remove(r.Cgroup)
	}
	return nil
}

// proof is what the caller or this driver knows of a task, the handle first.
func (d *rawexec) proof(ref driver.TaskRef) (r record, proved bool, err error) {
	if ref.Handle != nil {
		r, err = parse(ref.Handle)
		return r, true, err
	}
	if r, err := d.task(ref.ID); err == nil {
		return r, true, nil
	}
	return record{Scope: ref.Scope, Cgroup: ref.Cgroup}, false, nil
}

func (d *rawexec) drop(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.tasks, id)
}

// translate makes the supervisor's errors the contract's.
func translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, supervisor.ErrNotFound), errors.Is(err, supervisor.ErrNotProved):
		return fmt.Errorf("%w: %w", driver.ErrTaskNotFound, err)
	case errors.Is(err, supervisor.ErrForeignScope):
		return fmt.Errorf("%w: %w", driver.ErrForeignScope, err)
	case errors.Is(err, supervisor.ErrClosed):
		return driver.Recoverable(fmt.Errorf("%w: %w", driver.ErrUnavailable, err))
	}
	return err
}

func patterns(field string, list []string) error {
	var errs []error
	for i, p := range list {
		if _, err := path.Match(p, ""); err != nil {
			errs = append(errs, fmt.Errorf("rawexec: %s[%d] %q: must be a name or a shell pattern such as AWS_*", field, i, p))
		}
	}
	return errors.Join(errs...)
}

// denied says whether a name matches one of the patterns.
func denied(name string, lists ...[]string) bool {
	for _, list := range lists {
		if slices.ContainsFunc(list, func(p string) bool { ok, _ := path.Match(p, name); return ok }) {
			return true
		}
	}
	return false
}
