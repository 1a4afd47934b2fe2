// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin/driverpb"
	"github.com/nodekeep/nodekeep/internal/pluginwire"
)

// goneWait is how long a broken call waits to learn whether the process ended.
const goneWait = 3 * time.Second

// remote is a driver in a plugin's process. It implements every part of the
// contract; what the driver cannot do is ErrNotImplemented.
type remote struct {
	rpc   driverpb.DriverClient
	ext   driverpb.ExtensionClient
	info  driver.Info
	has   *driverpb.DescribeResponse // nil: not a driver of ours
	total int64                      // the node's compute in MHz
	ended <-chan struct{}            // the process has
	stop  chan struct{}              // closed when we let go of it

	mu    sync.Mutex
	tasks map[string]*watch
	work  sync.WaitGroup
}

// watch is the one WaitTask of a task that is open from its start until its end:
// some drivers lose an exit that nobody waits for while they stop the task.
type watch struct {
	cancel context.CancelCauseFunc // what the waiting callers are told
	done   chan struct{}
	res    driver.ExitResult // before done is closed
	err    error
}

// meet asks the driver what never changes. ctx must have a deadline.
func meet(ctx context.Context, base *pluginwire.Base, conn grpc.ClientConnInterface, ended <-chan struct{}, node *driver.Node) (*remote, error) {
	r := &remote{rpc: driverpb.NewDriverClient(conn), ext: driverpb.NewExtensionClient(conn), total: compute(node),
		ended: ended, stop: make(chan struct{}), tasks: map[string]*watch{}}
	if _, err := r.rpc.Init(ctx, &driverpb.InitRequest{}); err != nil && status.Code(err) != codes.Unimplemented {
		return nil, fmt.Errorf("Init: %w", err)
	}
	s, err := r.rpc.TaskConfigSchema(ctx, &driverpb.TaskConfigSchemaRequest{})
	if err != nil {
		return nil, fmt.Errorf("TaskConfigSchema: %w", err)
	}
	schema, err := pluginwire.SchemaOf(s.GetSpec())
	if err != nil {
		return nil, fmt.Errorf("TaskConfigSchema: %w", err)
	}
	c, err := r.rpc.Capabilities(ctx, &driverpb.CapabilitiesRequest{})
	if err != nil {
		return nil, fmt.Errorf("Capabilities: %w", err)
	}
	r.info = driver.Info{Name: base.Name, Version: base.Version, Capabilities: capabilitiesFrom(c.GetCapabilities()),
		TaskSchema: schema, ConfigSchema: base.Schema}
	if has, err := r.ext.Describe(ctx, &driverpb.DescribeRequest{}); err == nil {
		r.has = has
		r.info.Capabilities.IdempotentStart, r.info.Capabilities.RemountSecrets = has.GetIdempotentStart(), has.GetRemountSecrets()
	} else if status.Code(err) != codes.Unimplemented {
		return nil, fmt.Errorf("Describe: %w", err)
	}
	return r, nil
}

// compute is what a node's cores sum up to, for the share a task has of it.
func compute(n *driver.Node) (mhz int64) {
	if n == nil {
		return 0
	}
	if mhz = n.TotalMHz; mhz == 0 {
		for _, c := range n.Cores {
			switch {
			case c.Disabled:
			case c.MaxMHz > 0:
				mhz += c.MaxMHz
			case c.BaseMHz > 0:
				mhz += c.BaseMHz
			default:
				mhz += c.GuessMHz
			}
		}
	}
	return max(0, mhz-n.ReservedMHz)
}

// gone says whether the process has ended; the news may be a moment behind.
func (r *remote) gone() bool {
	t := time.NewTimer(goneWait)
	defer t.Stop()
	select {
	case <-r.ended:
	case <-r.stop: // also when it has ended: then the other case may come second
	case <-t.C:
	}
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

func (r *remote) error(ctx context.Context, err error) error {
	return pluginwire.Error(ctx, err, r.gone)
}

// close ends what runs here; the connection must be closed by then.
func (r *remote) close() {
	close(r.stop)
	r.mu.Lock()
	for _, w := range r.tasks {
		w.cancel(driver.ErrPluginGone)
	}
	r.mu.Unlock()
	r.work.Wait()
}

// Info implements driver.Driver.
func (r *remote) Info() driver.Info { return r.info }

// task is a task on the wire, for this driver.
func (r *remote) task(cfg driver.TaskConfig) (*driverpb.TaskConfig, error) {
	if r.info.Capabilities.DynamicUsers {
		cfg.User = userTo(cfg.User)
	}
	return taskTo(cfg, r.total)
}

// Start implements driver.Driver.
func (r *remote) Start(ctx context.Context, cfg driver.TaskConfig) (*driver.Handle, error) {
	task, err := r.task(cfg)
	if err != nil {
		return nil, err
	}
	resp, err := r.rpc.StartTask(ctx, &driverpb.StartTaskRequest{Task: task})
	if err != nil {
		return nil, r.error(ctx, err)
	}
	h := resp.GetHandle()
	if h == nil {
		return nil, fmt.Errorf("driver %s started the task and gave no handle", r.info.Name)
	}
	if h.GetConfig() == nil { // drivers elsewhere crash without it when they recover
		h.Config = task
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("driver %s: handle: %w", r.info.Name, err)
	}
	state, err := json.Marshal(raw)
	if err != nil {
		return nil, fmt.Errorf("driver %s: handle: %w", r.info.Name, err)
	}
	out := &driver.Handle{Driver: r.info.Name, TaskID: cfg.ID, Version: int(h.GetVersion()), State: state,
		Network: overrideFrom(resp.GetNetworkOverride())}
	if own, err := handleFrom(h); err == nil {
		out.PID = own.PID
	}
	r.watch(ctx, cfg.ID)
	return out, nil
}

// wireHandle is what the plugin gave with Start, untouched.
func (r *remote) wireHandle(h *driver.Handle) (*driverpb.TaskHandle, error) {
	if h == nil || h.Driver != r.info.Name {
		return nil, fmt.Errorf("driver %s: the handle is of another driver", r.info.Name)
	}
	var raw []byte
	t := &driverpb.TaskHandle{}
	err := json.Unmarshal(h.State, &raw)
	if err == nil {
		err = proto.Unmarshal(raw, t)
	}
	if err == nil && t.GetConfig().GetId() == "" {
		err = errors.New("it has no configuration")
	}
	if err != nil {
		return nil, fmt.Errorf("driver %s: handle of task %q: %w", r.info.Name, h.TaskID, err)
	}
	return t, nil
}

// Recover implements driver.Driver.
func (r *remote) Recover(ctx context.Context, h *driver.Handle) error {
	t, err := r.wireHandle(h)
	if err != nil {
		return err
	}
	if _, err = r.rpc.RecoverTask(ctx, &driverpb.RecoverTaskRequest{Handle: t}); err != nil {
		return r.error(ctx, err)
	}
	r.watch(ctx, h.TaskID)
	return nil
}

// watch opens a task's WaitTask, unless it is open.
func (r *remote) watch(ctx context.Context, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.stop:
		return
	default:
	}
	if w := r.tasks[id]; w != nil {
		return
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	w := &watch{cancel: cancel, done: make(chan struct{})}
	r.tasks[id] = w
	r.work.Go(func() {
		defer cancel(nil)
		w.res, w.err = r.wait(ctx, id)
		close(w.done)
	})
}

func (r *remote) watched(id string) *watch {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tasks[id]
}

// forget drops w, if it is still the task's.
func (r *remote) forget(id string, w *watch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w != nil && r.tasks[id] == w {
		w.cancel(driver.ErrTaskNotFound)
		delete(r.tasks, id)
	}
}

func (r *remote) wait(ctx context.Context, id string) (driver.ExitResult, error) {
	resp, err := r.rpc.WaitTask(ctx, &driverpb.WaitTaskRequest{TaskId: id})
	if err != nil {
		return driver.ExitResult{}, r.error(ctx, err)
	}
	return exitFrom(resp.GetResult(), resp.GetErr()), nil
}

// Wait implements driver.Driver.
func (r *remote) Wait(ctx context.Context, id string) (driver.ExitResult, error) {
	w := r.watched(id)
	if w == nil {
		return r.wait(ctx, id)
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		return driver.ExitResult{}, context.Cause(ctx)
	}
	if w.err != nil { // the next one asks anew
		r.forget(id, w)
	}
	return w.res, w.err
}

// Stop implements driver.Driver. Drivers differ in when they return from StopTask.
func (r *remote) Stop(ctx context.Context, id, signal string, grace time.Duration) error {
	w := r.watched(id)
	_, err := r.rpc.StopTask(ctx, &driverpb.StopTaskRequest{TaskId: id, Signal: signal, Timeout: durationpb.New(max(0, grace))})
	if w == nil {
		return r.error(ctx, err)
	}
	if err != nil {
		select {
		case <-w.done:
			if w.err == nil {
				return nil // it had ended
			}
		default:
		}
		return r.error(ctx, err)
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Destroy implements driver.Driver. The wire has no place for a proof, but for our
// own drivers: others get the task to recover first, so that they know it.
func (r *remote) Destroy(ctx context.Context, ref driver.TaskRef, force bool) error {
	var h *driverpb.TaskHandle
	if ref.Handle != nil {
		var err error
		if h, err = r.wireHandle(ref.Handle); err != nil {
			return err
		}
	}
	w := r.watched(ref.ID)
	var err error
	if r.has != nil {
		_, err = r.ext.Destroy(ctx, &driverpb.DestroyRequest{TaskId: ref.ID, Force: force, Handle: h, Scope: ref.Scope, Cgroup: ref.Cgroup})
	} else {
		if w == nil && h != nil {
			_, err = r.rpc.RecoverTask(ctx, &driverpb.RecoverTaskRequest{Handle: h})
			if err := r.error(ctx, err); errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrPluginGone) || ctx.Err() != nil {
				return err
			}
		}
		_, err = r.rpc.DestroyTask(ctx, &driverpb.DestroyTaskRequest{TaskId: ref.ID, Force: force})
	}
	if err = r.error(ctx, err); err == nil || errors.Is(err, driver.ErrTaskNotFound) {
		r.forget(ref.ID, w)
		return err
	}
	if !force && w != nil && r.has == nil {
		select {
		case <-w.done:
		default:
			return fmt.Errorf("%w: %w", driver.ErrTaskRunning, err)
		}
	}
	return err
}

// Prepare implements driver.Preparer. Foreign drivers prepare when they start.
func (r *remote) Prepare(ctx context.Context, cfg driver.TaskConfig, emit func(driver.Event)) error {
	if !r.has.GetPrepare() {
		return nil
	}
	task, err := r.task(cfg)
	if err != nil {
		return err
	}
	stream, err := r.ext.Prepare(ctx, &driverpb.PrepareRequest{Task: task})
	for err == nil {
		var e *driverpb.PrepareEvent
		if e, err = stream.Recv(); err == nil {
			out := eventFrom(e.GetEvent())
			if e.GetErr() != "" {
				out.Err = errors.New(short(e.GetErr()))
			}
			emit(out)
		}
	}
	if ended(err) {
		return nil
	}
	return r.error(ctx, err)
}

func (r *remote) cannot(what string) error {
	return fmt.Errorf("driver %s: %s: %w", r.info.Name, what, driver.ErrNotImplemented)
}

// Signal implements driver.Signaler.
func (r *remote) Signal(ctx context.Context, id, signal string) error {
	if !r.info.Capabilities.SendSignals {
		return r.cannot("signals")
	}
	_, err := r.rpc.SignalTask(ctx, &driverpb.SignalTaskRequest{TaskId: id, Signal: signal})
	return r.error(ctx, err)
}

// Inspect implements driver.Inspector.
func (r *remote) Inspect(ctx context.Context, id string) (driver.TaskStatus, error) {
	if r.has != nil && !r.has.GetInspect() {
		return driver.TaskStatus{}, r.cannot("inspect")
	}
	resp, err := r.rpc.InspectTask(ctx, &driverpb.InspectTaskRequest{TaskId: id})
	if err != nil {
		return driver.TaskStatus{}, r.error(ctx, err)
	}
	return statusFrom(resp), nil
}

// CreateNetwork implements driver.Networker.
func (r *remote) CreateNetwork(ctx context.Context, allocID, hostname string) (*driver.Network, bool, error) {
	if !r.info.Capabilities.MustInitNetwork {
		return nil, false, r.cannot("networks")
	}
	resp, err := r.rpc.CreateNetwork(ctx, &driverpb.CreateNetworkRequest{AllocId: allocID, Hostname: hostname})
	if err != nil {
		return nil, false, r.error(ctx, err)
	}
	return networkFrom(resp.GetIsolationSpec()), resp.GetCreated(), nil
}

// DestroyNetwork implements driver.Networker. Without a network there is nothing
// to call for; drivers elsewhere do not expect it.
func (r *remote) DestroyNetwork(ctx context.Context, allocID string, n *driver.Network) error {
	if !r.info.Capabilities.MustInitNetwork {
		return r.cannot("networks")
	}
	if n == nil {
		return nil
	}
	_, err := r.rpc.DestroyNetwork(ctx, &driverpb.DestroyNetworkRequest{AllocId: allocID, IsolationSpec: networkTo(n)})
	return r.error(ctx, err)
}
