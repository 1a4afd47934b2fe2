// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package exec is the driver "exec": isolated processes of the host, or of an
// unpacked image. A task has a file system, processes, users, devices, limits and
// privileges of its own and sees nothing else.
//
//	task {
//	  driver = "exec"
//	  user   = "www-data"                        # default: nobody; root only where the node allows it
//	  config {
//	    command        = "server"                # required; found in /local, / and the PATH of the task
//	    args           = ["-port", "${NOMAD_PORT_http}"]
//	    work_dir       = "/local"                # default /
//	    image          = "local/rootfs"          # an unpacked root; default: the host's programs, read-only
//	    writable_root  = false                   # what is written outside of /alloc /local /secrets /tmp
//	    tmp_mb         = 0                       # /tmp in memory; 0 is the task's directory
//	    shm_mb         = 64
//	    cap_add        = ["net_bind_service"]
//	    cap_drop       = ["all"]
//	    no_new_privs   = true
//	    seccomp        = "default"               # or "unconfined", where the node allows it
//	    pid_mode       = "private"               # or "host"; ipc_mode likewise
//	    user_namespace = false
//	    init           = false                   # a small init is PID 1: it forwards signals and reaps
//	    cpu_hard_limit = false
//	    pids_limit     = 0
//	    memory_swap_mb = 0                       # beside the memory; -1 is no limit
//	    oom_score_adj  = 0
//	    ulimit         = { nofile = "1024:4096" }
//	    hostname       = "web"
//	    denied_envvars = ["AWS_*"]
//	    strict         = false                   # do not start with less than was asked for
//	  }
//	}
//
// Who does what:
//
//	agent                       supervisor              creator              task
//	options ─▶ a container ───▶ journal ─ fork ───────▶ makes it ──────────▶ waits
//	                            journal ◀── pid ─────── ends
//	        ◀── pid ─────────── lets it go ────────────────────────────────▶ runs
//
// The task is the supervisor's child like any other (package supervisor); the
// creator is nodekeep-exec or this program, started again, for a moment (package
// internal/creator). So what is true of raw_exec is true here: agent and supervisor
// may die at any time, an exit is known, a log byte is not lost. Beyond that:
//
//   - No program of a task runs before it is recorded, and a start that failed has
//     run none. A program that cannot be run is an error of the start.
//   - Limits and privileges are in force before the program's first instruction, and
//     hold for commands that are run beside it too: they have the task's user, limits,
//     capabilities and filter.
//   - With processes of its own a task's main process is PID 1: a signal it has set no
//     handler for does nothing, SIGTERM included, so that such a program ends only when
//     the kill timeout is over. init = true puts an init before it that passes signals on.
//   - Out of memory is what the kernel counted, also if it was a child that was killed
//     and the task ended well.
//   - Destroy leaves no process, cgroup of any hierarchy, mount or file. What was
//     mounted was in a namespace that ended with the task.
//   - What a machine cannot give is left out and told (Inspect: isolation), or refused
//     with strict = true.
package exec

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nodekeep/nodekeep/driver"
	_ "github.com/nodekeep/nodekeep/driver/exec/entry" // this program may be the creator
	"github.com/nodekeep/nodekeep/driver/exec/internal/container"
	"github.com/nodekeep/nodekeep/driver/internal/supervised"
	"github.com/nodekeep/nodekeep/internal/account"
	"github.com/nodekeep/nodekeep/supervisor"
)

// Name is how jobs name the driver.
const Name = "exec"

const version = "1.0.0"

// New returns what an agent makes the driver with. Where there are no containers
// (no Linux, no cgo) the driver is made too, and says so.
func New(cfg Config) func(*supervisor.Pool) (driver.Driver, error) {
	return func(pool *supervisor.Pool) (driver.Driver, error) {
		if err := cfg.validate(); err != nil {
			return nil, err
		}
		program, err := creatorProgram(cfg)
		if err != nil {
			return nil, err
		}
		return &execDriver{
			Tasks: supervised.New(Name, "exec", true, pool), cfg: cfg, program: program, users: &account.Book{},
			creators: make(chan struct{}, runtime.NumCPU()+1), watchers: map[chan driver.Fingerprint]bool{},
		}, nil
	}
}

// execDriver implements driver.Driver, Configurer, Signaler, Inspector, Execer and
// Meter.
type execDriver struct {
	*supervised.Tasks
	cfg      Config
	program  string // that makes containers; "" is our own
	users    *account.Book
	creators chan struct{} // at work, in all scopes

	mu       sync.Mutex
	probed   bool
	features container.Features
	coreMHz  int64
	watchers map[chan driver.Fingerprint]bool
}

// Info implements driver.Driver.
func (d *execDriver) Info() driver.Info {
	return driver.Info{
		Name: Name, Version: version,
		Capabilities: driver.Capabilities{SendSignals: true, Exec: true, IdempotentStart: true, RemountSecrets: true,
			FSIsolation: driver.FSChroot, NetIsolation: []string{"host", "group", "none"}, DynamicUsers: d.cfg.Policy.DynamicUsers},
		TaskSchema: container.Schema(),
	}
}

// Configure implements driver.Configurer: a hard limit needs the speed of a core.
func (d *execDriver) Configure(_ context.Context, s driver.Setup) error {
	if s.Node == nil || len(s.Node.Cores) == 0 {
		return nil
	}
	mhz := s.Node.TotalMHz / int64(len(s.Node.Cores))
	if c := s.Node.Cores[0]; mhz == 0 {
		mhz = max(c.BaseMHz, c.GuessMHz)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.coreMHz = mhz
	return nil
}

// Fingerprint implements driver.Driver. A later value comes when a start showed
// that the machine has changed.
func (d *execDriver) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	f := d.probe(ctx, false)
	ch := make(chan driver.Fingerprint, 1)
	d.mu.Lock()
	ch <- d.fingerprint(f)
	d.watchers[ch] = true
	d.mu.Unlock()
	context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.watchers, ch)
		close(ch)
	})
	return ch, nil
}

// probe returns what this machine can do, asked again if told to; what is different
// by then is told to all who watch.
func (d *execDriver) probe(ctx context.Context, again bool) container.Features {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.probed && !again {
		return d.features
	}
	f := container.Probe(ctx)
	if ctx.Err() != nil {
		return f
	}
	changed := d.probed && text(f) != text(d.features)
	d.probed, d.features = true, f
	if changed {
		for ch := range d.watchers {
			select {
			case <-ch: // nobody has taken the last one
			default:
			}
			ch <- d.fingerprint(f)
		}
	}
	return f
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (d *execDriver) fingerprint(f container.Features) driver.Fingerprint {
	if err := d.usable(f); err != nil {
		return driver.Fingerprint{Health: driver.Undetected, Description: err.Error()}
	}
	fp := driver.Fingerprint{Health: driver.Healthy, Description: "Healthy", Attributes: map[string]string{
		"driver.exec": "1", "driver.exec.version": version, "driver.exec.root": strconv.FormatBool(f.Root),
		"driver.exec.cgroup": f.Cgroup, "driver.exec.controllers": strings.Join(f.Controllers, ","),
	}}
	for name, why := range map[string]string{"seccomp": f.Seccomp, "user_namespaces": f.UserNS, "id_mapped_mounts": f.IDMap,
		"overlay": f.Overlay, "swap_limit": f.Swap, "psi": f.PSI} {
		fp.Attributes["driver.exec."+name] = strconv.FormatBool(why == "")
	}
	if missing := f.Missing(); len(missing) > 0 {
		fp.Description = "Healthy; not here: " + strings.Join(missing, "; ")
	}
	return fp
}

// usable says why no task can be started.
func (d *execDriver) usable(f container.Features) error {
	if err := d.Supported(); err != nil {
		return err
	}
	if d.cfg.Disabled {
		return fmt.Errorf("exec: turned off on this node (exec.Config.Disabled)")
	}
	if f.Unusable != "" {
		return fmt.Errorf("%w: %s", container.ErrUnsupported, f.Unusable)
	}
	return nil
}

// node is what the operator decides for a task of a scope.
func (d *execDriver) node(f container.Features, stateRoot, group string) container.NodeOptions {
	p := d.cfg.Policy
	d.mu.Lock()
	mhz := d.coreMHz
	d.mu.Unlock()
	return container.NodeOptions{
		StateRoot: stateRoot, Cgroup: group, Features: f, CoreMHz: mhz, Lookup: d.users.Lookup,
		Entries: d.cfg.Entries, IDs: d.cfg.IDs, PidsLimit: d.cfg.PidsLimit, ResolvConf: d.cfg.ResolvConf,
		AllowCaps: p.AllowCaps, DefaultUser: p.DefaultUser, DeniedUsers: p.DeniedUsers, DeniedEnv: p.DeniedEnv,
		AllowRoot: p.AllowRoot, AllowHostPID: p.AllowHostPID, AllowHostIPC: p.AllowHostIPC,
		AllowSetuid: p.AllowSetuid, AllowUnconfined: p.AllowUnconfined,
	}
}

// Inspect implements driver.Inspector. The attribute "isolation" is what is in
// force for the task, as JSON.
func (d *execDriver) Inspect(ctx context.Context, id string) (driver.TaskStatus, error) {
	st, err := d.Tasks.Inspect(ctx, id)
	if err != nil {
		return st, err
	}
	r, err := d.Task(id)
	if err == nil {
		for _, k := range slices.Sorted(maps.Keys(r.Attrs)) {
			st.Attrs[k] = r.Attrs[k]
		}
	}
	return st, err
}
