// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin/driverpb"
	"github.com/nodekeep/nodekeep/internal/pluginwire"
)

// maxOutput is how much of each output ExecTask returns: a message has a limit.
const maxOutput = 1 << 20

// server serves a driver on the wire.
type server struct {
	driverpb.UnimplementedDriverServer
	driverpb.UnimplementedExtensionServer
	d driver.Driver

	mu    sync.Mutex
	tasks map[string]known
}

// known is what the wire does not repeat about a task.
type known struct {
	owner  driver.Owner
	name   string
	scope  string
	cgroup string
	handle *driver.Handle
}

func newServer(d driver.Driver) *server { return &server{d: d, tasks: map[string]known{}} }

func (s *server) keep(c driver.TaskConfig, h *driver.Handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks[c.ID] = known{owner: c.Owner, name: c.Name, scope: c.Scope, cgroup: c.Cgroup, handle: h}
}

func (s *server) known(id string) known {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tasks[id]
}

func (s *server) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tasks, id)
}

// cannot is how the wire says that a driver has no such part. Agents know some of
// the texts.
func cannot(text string) error {
	return pluginwire.Status(&unable{text})
}

type unable struct{ text string }

func (u *unable) Error() string { return u.text }
func (u *unable) Unwrap() error { return driver.ErrNotImplemented }

func (s *server) Init(context.Context, *driverpb.InitRequest) (*driverpb.InitResponse, error) {
	return &driverpb.InitResponse{}, nil
}

func (s *server) Shutdown(context.Context, *driverpb.ShutdownRequest) (*driverpb.ShutdownResponse, error) {
	return &driverpb.ShutdownResponse{}, nil
}

func (s *server) TaskConfigSchema(context.Context, *driverpb.TaskConfigSchemaRequest) (*driverpb.TaskConfigSchemaResponse, error) {
	return &driverpb.TaskConfigSchemaResponse{Spec: pluginwire.SpecOf(pluginwire.Named(s.d.Info().TaskSchema, ""))}, nil
}

func (s *server) Capabilities(context.Context, *driverpb.CapabilitiesRequest) (*driverpb.CapabilitiesResponse, error) {
	return &driverpb.CapabilitiesResponse{Capabilities: capabilitiesTo(s.d.Info().Capabilities)}, nil
}

func (s *server) Fingerprint(_ *driverpb.FingerprintRequest, stream grpc.ServerStreamingServer[driverpb.FingerprintResponse]) error {
	c, err := s.d.Fingerprint(stream.Context())
	if err != nil {
		return pluginwire.Status(err)
	}
	return forward(stream, c, fingerprintTo)
}

// forward sends what comes from a channel, which must be closed when the stream's
// context ends.
func forward[T any, M any](stream grpc.ServerStreamingServer[M], c <-chan T, to func(T) *M) error {
	ctx := stream.Context()
	for v := range c {
		if err := stream.Send(to(v)); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return pluginwire.Status(errors.New("channel closed"))
}

func (s *server) StartTask(ctx context.Context, req *driverpb.StartTaskRequest) (*driverpb.StartTaskResponse, error) {
	cfg, err := taskFrom(req.GetTask(), s.d.Info().TaskSchema)
	if err != nil {
		return nil, pluginwire.StartStatus(err)
	}
	h, err := s.d.Start(ctx, cfg)
	if err != nil {
		return nil, pluginwire.StartStatus(err)
	}
	wire, err := handleTo(h, req.GetTask())
	if err != nil {
		return nil, pluginwire.StartStatus(err)
	}
	s.keep(cfg, h)
	return &driverpb.StartTaskResponse{Handle: wire, NetworkOverride: overrideTo(h.Network)}, nil
}

func (s *server) RecoverTask(ctx context.Context, req *driverpb.RecoverTaskRequest) (*driverpb.RecoverTaskResponse, error) {
	h, err := handleFrom(req.GetHandle())
	if err == nil {
		err = s.d.Recover(ctx, h)
	}
	if err != nil {
		return nil, pluginwire.Status(err)
	}
	cfg, err := taskFrom(req.GetHandle().GetConfig(), nil)
	if err != nil { // what it says of the task is for later calls only
		cfg = driver.TaskConfig{}
	}
	cfg.ID = h.TaskID
	s.keep(cfg, h)
	return &driverpb.RecoverTaskResponse{}, nil
}

func (s *server) WaitTask(ctx context.Context, req *driverpb.WaitTaskRequest) (*driverpb.WaitTaskResponse, error) {
	res, err := s.d.Wait(ctx, req.GetTaskId())
	if err != nil {
		return nil, pluginwire.Status(err)
	}
	return &driverpb.WaitTaskResponse{Result: exitTo(res), Err: valid(res.Err)}, nil
}

func (s *server) StopTask(ctx context.Context, req *driverpb.StopTaskRequest) (*driverpb.StopTaskResponse, error) {
	err := s.d.Stop(ctx, req.GetTaskId(), req.GetSignal(), req.GetTimeout().AsDuration())
	if err != nil {
		return nil, pluginwire.Status(err)
	}
	return &driverpb.StopTaskResponse{}, nil
}

func (s *server) DestroyTask(ctx context.Context, req *driverpb.DestroyTaskRequest) (*driverpb.DestroyTaskResponse, error) {
	k := s.known(req.GetTaskId())
	ref := driver.TaskRef{ID: req.GetTaskId(), Handle: k.handle, Scope: k.scope, Cgroup: k.cgroup}
	if err := s.destroy(ctx, ref, req.GetForce()); err != nil {
		return nil, err
	}
	return &driverpb.DestroyTaskResponse{}, nil
}

// Destroy is DestroyTask with a proof.
func (s *server) Destroy(ctx context.Context, req *driverpb.DestroyRequest) (*driverpb.DestroyResponse, error) {
	ref := driver.TaskRef{ID: req.GetTaskId(), Scope: req.GetScope(), Cgroup: req.GetCgroup()}
	if req.GetHandle() != nil {
		h, err := handleFrom(req.GetHandle())
		if err != nil {
			return nil, pluginwire.Status(err)
		}
		ref.Handle = h
	}
	if err := s.destroy(ctx, ref, req.GetForce()); err != nil {
		return nil, err
	}
	return &driverpb.DestroyResponse{}, nil
}

func (s *server) destroy(ctx context.Context, ref driver.TaskRef, force bool) error {
	err := s.d.Destroy(ctx, ref, force)
	if err == nil || errors.Is(err, driver.ErrTaskNotFound) {
		s.drop(ref.ID)
	}
	return pluginwire.Status(err)
}

// Describe says what our contract has beyond the wire.
func (s *server) Describe(context.Context, *driverpb.DescribeRequest) (*driverpb.DescribeResponse, error) {
	c := s.d.Info().Capabilities
	out := &driverpb.DescribeResponse{IdempotentStart: c.IdempotentStart, RemountSecrets: c.RemountSecrets}
	_, out.Prepare = s.d.(driver.Preparer)
	_, out.Inspect = s.d.(driver.Inspector)
	_, out.Stats = s.d.(driver.Meter)
	_, out.Events = s.d.(driver.EventSource)
	return out, nil
}

// Prepare streams what the driver has to say while it gets ready.
func (s *server) Prepare(req *driverpb.PrepareRequest, stream grpc.ServerStreamingServer[driverpb.PrepareEvent]) error {
	p, ok := s.d.(driver.Preparer)
	if !ok {
		return nil
	}
	cfg, err := taskFrom(req.GetTask(), s.d.Info().TaskSchema)
	if err != nil {
		return pluginwire.StartStatus(err)
	}
	var mu sync.Mutex
	over := false
	err = p.Prepare(stream.Context(), cfg, func(e driver.Event) {
		m := &driverpb.PrepareEvent{Event: eventTo(e)}
		if e.Err != nil {
			m.Err = valid(e.Err.Error())
		}
		mu.Lock()
		defer mu.Unlock()
		if !over {
			_ = stream.Send(m) // whoever does not listen misses it
		}
	})
	mu.Lock()
	over = true
	mu.Unlock()
	return pluginwire.StartStatus(err)
}

func (s *server) InspectTask(ctx context.Context, req *driverpb.InspectTaskRequest) (*driverpb.InspectTaskResponse, error) {
	i, ok := s.d.(driver.Inspector)
	if !ok {
		return nil, cannot("InspectTask is not supported by this driver")
	}
	st, err := i.Inspect(ctx, req.GetTaskId())
	if err != nil {
		return nil, pluginwire.Status(err)
	}
	k := s.known(req.GetTaskId())
	out := statusTo(st, k.name)
	if k.handle != nil {
		out.NetworkOverride = overrideTo(k.handle.Network)
	}
	return out, nil
}

func (s *server) TaskStats(req *driverpb.TaskStatsRequest, stream grpc.ServerStreamingServer[driverpb.TaskStatsResponse]) error {
	m, ok := s.d.(driver.Meter)
	if !ok {
		return cannot("TaskStats is not supported by this driver")
	}
	c, err := m.Stats(stream.Context(), req.GetTaskId(), req.GetCollectionInterval().AsDuration())
	if err != nil {
		return pluginwire.Status(err)
	}
	for u := range c {
		if err := stream.Send(usageTo(req.GetTaskId(), u)); err != nil {
			return err
		}
	}
	return stream.Context().Err()
}

func (s *server) TaskEvents(_ *driverpb.TaskEventsRequest, stream grpc.ServerStreamingServer[driverpb.DriverTaskEvent]) error {
	src, ok := s.d.(driver.EventSource)
	if !ok { // agents keep one stream open, whatever the driver has to say
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	c, err := src.Events(stream.Context())
	if err != nil {
		return pluginwire.Status(err)
	}
	return forward(stream, c, func(e driver.Event) *driverpb.DriverTaskEvent {
		if k := s.known(e.TaskID); e.AllocID == "" {
			e.AllocID, e.Task = k.owner.AllocID, k.name
		}
		if e.Time.IsZero() {
			e.Time = time.Now()
		}
		return eventTo(e)
	})
}

func (s *server) SignalTask(ctx context.Context, req *driverpb.SignalTaskRequest) (*driverpb.SignalTaskResponse, error) {
	sig, ok := s.d.(driver.Signaler)
	if !ok {
		return nil, cannot("SignalTask is not supported by this driver")
	}
	if err := sig.Signal(ctx, req.GetTaskId(), req.GetSignal()); err != nil {
		return nil, pluginwire.Status(err)
	}
	return &driverpb.SignalTaskResponse{}, nil
}

func (s *server) CreateNetwork(ctx context.Context, req *driverpb.CreateNetworkRequest) (*driverpb.CreateNetworkResponse, error) {
	n, ok := s.d.(driver.Networker)
	if !ok {
		return nil, cannot("CreateNetwork RPC not supported by driver")
	}
	spec, created, err := n.CreateNetwork(ctx, req.GetAllocId(), req.GetHostname())
	if err != nil {
		return nil, pluginwire.Status(err)
	}
	return &driverpb.CreateNetworkResponse{IsolationSpec: networkTo(spec), Created: created}, nil
}

func (s *server) DestroyNetwork(ctx context.Context, req *driverpb.DestroyNetworkRequest) (*driverpb.DestroyNetworkResponse, error) {
	n, ok := s.d.(driver.Networker)
	if !ok {
		return nil, cannot("DestroyNetwork RPC not supported by driver")
	}
	if err := n.DestroyNetwork(ctx, req.GetAllocId(), networkFrom(req.GetIsolationSpec())); err != nil {
		return nil, pluginwire.Status(err)
	}
	return &driverpb.DestroyNetworkResponse{}, nil
}

func (s *server) ExecTask(ctx context.Context, req *driverpb.ExecTaskRequest) (*driverpb.ExecTaskResponse, error) {
	x, ok := s.d.(driver.Execer)
	if !ok {
		return nil, cannot("ExecTask is not supported by this driver")
	}
	out, err := driver.Output(ctx, x, req.GetTaskId(), req.GetCommand(), req.GetTimeout().AsDuration(), maxOutput)
	if err != nil && out.ExitResult == (driver.ExitResult{}) {
		return nil, pluginwire.Status(err)
	}
	return &driverpb.ExecTaskResponse{Stdout: out.Stdout, Stderr: out.Stderr, Result: exitTo(out.ExitResult)}, nil
}

type execServer = grpc.BidiStreamingServer[driverpb.ExecTaskStreamingRequest, driverpb.ExecTaskStreamingResponse]

func (s *server) ExecTaskStreaming(stream execServer) error {
	x, ok := s.d.(driver.Execer)
	if !ok {
		return cannot("driver does not support exec")
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	setup := first.GetSetup()
	if setup == nil {
		return pluginwire.Status(errors.New("first message should always be setup"))
	}
	in, typed := io.Pipe()
	sizes := make(pluginwire.Latest[driver.TerminalSize], 1)
	out := &outputs{stream: stream}
	req := driver.ExecRequest{Command: setup.GetCommand(), TTY: setup.GetTty(), Stdin: in, Resize: sizes,
		Stdout: out.writer(func(b []byte) *driverpb.ExecTaskStreamingResponse {
			return &driverpb.ExecTaskStreamingResponse{Stdout: &driverpb.ExecTaskStreamingIOOperation{Data: b}}
		})}
	if !setup.GetTty() {
		req.Stderr = out.writer(func(b []byte) *driverpb.ExecTaskStreamingResponse {
			return &driverpb.ExecTaskStreamingResponse{Stderr: &driverpb.ExecTaskStreamingIOOperation{Data: b}}
		})
	}
	if req.Env, err = execEnv(stream.Context()); err != nil {
		return pluginwire.Status(err)
	}
	go receive(stream, typed, sizes) // ends with the stream, when this handler has returned
	if setup.GetTty() {
		req.Size = firstSize(stream.Context(), sizes)
	}
	res, err := x.Exec(stream.Context(), setup.GetTaskId(), req)
	_ = in.Close()
	if err != nil && res == (driver.ExitResult{}) {
		return pluginwire.Status(err)
	}
	return out.end(res, setup.GetTty())
}

// firstSize waits a moment for the size that agents send right after the setup.
func firstSize(ctx context.Context, sizes <-chan driver.TerminalSize) driver.TerminalSize {
	ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	select {
	case s := <-sizes:
		return s
	case <-ctx.Done():
		return driver.TerminalSize{}
	}
}

// execEnv reads the variables that an agent of ours sends along.
func execEnv(ctx context.Context) (env []string, err error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get(envHeader); len(v) > 0 {
		if err = json.Unmarshal([]byte(v[0]), &env); err != nil {
			err = fmt.Errorf("driverplugin: variables of the command: %w", err)
		}
	}
	return env, err
}

// receive hands on what the user types, and the size of the terminal.
func receive(stream execServer, typed *io.PipeWriter, sizes pluginwire.Latest[driver.TerminalSize]) {
	for {
		m, err := stream.Recv()
		if err != nil {
			_ = typed.Close()
			return
		}
		if s := m.GetTtySize(); s != nil {
			sizes.Put(driver.TerminalSize{Rows: uint16(max(0, min(s.GetHeight(), 1<<16-1))), Cols: uint16(max(0, min(s.GetWidth(), 1<<16-1)))})
		}
		if in := m.GetStdin(); in != nil {
			if len(in.GetData()) > 0 && !in.GetClose() {
				_, _ = typed.Write(in.GetData()) // a command that does not read has ended
			}
			if in.GetClose() {
				_ = typed.Close()
			}
		}
	}
}

// outputs is the sending side of an execution: one message at a time.
type outputs struct {
	mu     sync.Mutex
	stream execServer
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func (o *outputs) writer(wrap func([]byte) *driverpb.ExecTaskStreamingResponse) io.Writer {
	return writerFunc(func(b []byte) (int, error) {
		for n := 0; n < len(b); n += chunk {
			if err := o.send(wrap(b[n:min(len(b), n+chunk)])); err != nil {
				return n, err
			}
		}
		return len(b), nil
	})
}

func (o *outputs) send(m *driverpb.ExecTaskStreamingResponse) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stream.Send(m)
}

func (o *outputs) end(res driver.ExitResult, tty bool) error {
	closed := &driverpb.ExecTaskStreamingIOOperation{Close: true}
	err := o.send(&driverpb.ExecTaskStreamingResponse{Stdout: closed})
	if !tty {
		err = errors.Join(err, o.send(&driverpb.ExecTaskStreamingResponse{Stderr: closed}))
	}
	return errors.Join(err, o.send(&driverpb.ExecTaskStreamingResponse{Exited: true, Result: exitTo(res)}))
}
