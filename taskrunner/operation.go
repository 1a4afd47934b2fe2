// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/guard"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskenv"
)

// operation is one op under way, in a goroutine of its own. It reads a snapshot,
// never the loop; what it wants of the loop it asks through cmds.
type operation struct {
	*TaskRunner
	op        op
	snap      Snapshot
	alloc     *spec.Alloc
	seen      *spec.Alloc // what the last update hooks saw
	task      *spec.Task
	out       *outputs
	bg        *guard.Group // background work of this attempt
	known     bool         // this process has had the task alive
	recovered bool         // … and an earlier one started it
	orphan    bool         // … and so did whoever kept the time of its stop
	leftover  bool         // the attempt is the start intent of an earlier agent
	tries     int          // failed ones of this op before
	signal    string
	spot      atomic.Pointer[spot] // what it is doing; nil: nothing that takes its time
	events    []Event
	log       hclog.Logger
}

// outputs is what prestart hooks made, handed from operation to operation.
type outputs struct {
	info driver.Info
	by   []Contribution // of each hook; what is set is never changed, but replaced with a copy
	redo []int          // hooks whose rebuild is to be tried again; nil before the first try
	cfg  driver.TaskConfig
	// unknown are names that texts of the task use and nobody knows.
	unknown string
}

// perform does the operation's work. A panic of ours ends the operation only.
func (o *operation) perform(ctx context.Context) (res result) {
	defer func() {
		if p := recover(); p != nil {
			o.log.Error("operation panicked", "panic", p, "stack", string(debug.Stack()))
			res = result{err: fmt.Errorf("taskrunner: panic: %v", p), kind: DriverFailure}
			if o.op == opResume || o.op == opExited || o.op == opAbort {
				res.leaked = res.err // nobody knows what is left
			}
		}
		res.op, res.events = o.op, o.events
	}()
	switch o.op {
	case opRecover:
		return o.recover(ctx)
	case opResume:
		return o.resume(ctx)
	case opPrestart:
		return o.prestart(ctx)
	case opPrepare:
		return o.prepare(ctx)
	case opStart:
		return o.start(ctx)
	case opRebuild:
		return o.rebuild(ctx)
	case opPoststart:
		return o.poststart(ctx)
	case opUpdate:
		return o.hooksUntil(ctx, cbUpdate)
	case opSignal:
		return o.sendSignal(ctx)
	case opWait:
		return o.wait(ctx)
	case opPrekill:
		return o.prekill(ctx)
	case opDelay:
		return o.delay(ctx)
	case opStop:
		return o.stop(ctx)
	case opExited:
		return o.exited(ctx)
	case opAbort:
		return o.abort(ctx)
	default: // opCleanup
		return o.cleanup(ctx)
	}
}

// taskID is the driver's name for the attempt: the same whenever a step is repeated.
func (o *operation) taskID() string {
	return o.cfg.Alloc.ID + "/" + o.cfg.Task + "/" + strconv.Itoa(o.snap.Attempt)
}

func (o *operation) cgroup() string {
	if o.cfg.Cgroups == nil {
		return ""
	}
	return o.cfg.Cgroups.Path(o.cfg.Alloc.ID, o.cfg.Task)
}

func (o *operation) dir() allocdir.TaskDir {
	if o.cfg.Dir == nil {
		return allocdir.TaskDir{}
	}
	return o.cfg.Dir.Task(o.cfg.Task)
}

// builder is the environment as the task sees it, of the first n hooks' outputs.
// What it returns may be called from any goroutine at any time.
func (o *operation) builder(n int) func() taskenv.Builder {
	by, alloc, env := o.out.by[:n], o.alloc, o.cfg.Env
	dirs := taskDirs(o.out.info.Capabilities.FSIsolation, o.dir())
	return sync.OnceValue(func() taskenv.Builder {
		b := env(alloc).WithDirs(dirs)
		for _, c := range by {
			if len(c.Env) > 0 {
				b = b.WithHook(c.Env)
			}
			if len(c.Template) > 0 {
				b = b.WithTemplate(c.Template)
			}
		}
		return b
	})
}

func hostDirs(d allocdir.TaskDir) taskenv.Dirs {
	return taskenv.Dirs{Alloc: d.Shared, Task: d.Local, Secrets: d.Secrets}
}

// taskDirs is where a task finds its directories: at paths of their own where
// the driver gives it a root of its own.
func taskDirs(iso driver.FSIsolation, d allocdir.TaskDir) taskenv.Dirs {
	if (iso == driver.FSChroot || iso == driver.FSImage) && d.Dir != "" {
		return taskenv.Dirs{Alloc: "/alloc", Task: "/local", Secrets: "/secrets"}
	}
	return hostDirs(d)
}

// taskConfig makes the configuration of the attempt. The error is final.
func (o *operation) taskConfig(drv driver.Driver) (driver.TaskConfig, []string, error) {
	env := o.builder(len(o.hooks))().Env()
	if err := env.Err(); err != nil {
		return driver.TaskConfig{}, nil, err
	}
	missing := env.Missing()
	user, unknown := env.Replace(o.task.User)
	missing = append(missing, unknown...)
	d, a, t := o.dir(), o.alloc, o.task
	cfg := driver.TaskConfig{
		ID: o.taskID(), Name: o.cfg.Task,
		Owner: driver.Owner{AllocID: a.ID, Task: t.Name, Group: a.Group, JobID: a.JobID, JobName: cmp.Or(a.JobName, a.JobID),
			Namespace: cmp.Or(a.Namespace, spec.DefaultNamespace), Region: cmp.Or(a.Region, spec.DefaultRegion),
			NodeID: env.Vars()["node.unique.id"], NodeName: env.Vars()["node.unique.name"], Attempt: o.snap.Attempt},
		Env: env.List(), User: user, Config: t.Config,
		Dirs:  driver.Dirs{Alloc: d.Shared, Task: d.Dir, Local: d.Local, Secrets: d.Secrets, Logs: d.Logs},
		Scope: o.cfg.Scope, Cgroup: o.cgroup(),
		Res: driver.Resources{CPU: cmp.Or(t.Resources.CPU, spec.DefaultCPU), Cores: t.Resources.CoreIDs,
			MemoryMB: cmp.Or(t.Resources.MemoryMB, spec.DefaultMemoryMB), MemoryMax: t.Resources.MemoryMaxMB},
	}
	for i, c := range o.out.by {
		if o.hooks[i].stage == StageDevices {
			for _, k := range slices.Sorted(maps.Keys(c.Env)) {
				cfg.DevEnv = append(cfg.DevEnv, k+"="+c.Env[k])
			}
		}
		cfg.Mounts = append(cfg.Mounts, c.Mounts...)
		cfg.Devices = append(cfg.Devices, c.Devices...)
		if c.Stdio != nil {
			cfg.Stdio = *c.Stdio
		}
		cfg.Network, cfg.DNS = cmp.Or(c.Network, cfg.Network), cmp.Or(c.DNS, cfg.DNS)
		cfg.User = cmp.Or(c.User, cfg.User)
	}
	if o.cfg.Eval != nil {
		var err error
		if cfg.Config, err = o.cfg.Eval(drv.Info().TaskSchema, t.Config, t.Origin, env.Vars()); err != nil {
			return cfg, missing, err
		}
	}
	return cfg, missing, nil
}

// ask hands f to the loop and waits for it to run, or for the end of the loop.
func (r *TaskRunner) ask(f func(*loop)) {
	ran := make(chan struct{})
	select {
	case r.cmds <- func(l *loop) { f(l); close(ran) }:
		<-ran
	case <-r.done:
	}
}

// control is what a Request can do.
type control struct {
	r    *TaskRunner
	log  hclog.Logger
	hook string
	save func() error
	bg   *guard.Group
	over atomic.Bool // the callback was abandoned: its state is void
}

func (c *control) checkpoint() error {
	if c.over.Load() {
		return guard.ErrAbandoned
	}
	return c.save()
}

func (c *control) emit(kind Kind, attrs map[string]string) {
	c.r.ask(func(l *loop) { l.emit(kind, maps.Clone(attrs)) })
}

// ask does not wait: the loop may be waiting for this very callback.
func (c *control) ask(what string, f func(*loop) error) {
	c.r.ask(func(l *loop) {
		if err := f(l); err != nil {
			c.log.Warn("request of a hook cannot be met", "hook", c.hook, "request", what, "error", err)
		}
	})
}

func (c *control) background(name string, f func(context.Context)) {
	c.r.ask(func(*loop) {
		if !c.bg.Start(name, f) {
			c.log.Warn("background work was asked for after the end of its attempt", "hook", c.hook, "work", name)
		}
	})
}
