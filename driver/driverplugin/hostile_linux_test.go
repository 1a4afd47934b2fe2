// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-plugin"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin"
	"github.com/nodekeep/nodekeep/driver/driverplugin/driverpb"
	"github.com/nodekeep/nodekeep/drivermanager"
	"github.com/nodekeep/nodekeep/internal/pluginpb"
	"github.com/nodekeep/nodekeep/internal/pluginproc"
)

// hostile plays programs that are no proper plugins.
func hostile(role string) bool {
	name, ok := strings.CutPrefix(role, "h-")
	if !ok {
		return false
	}
	socket := filepath.Join(os.Getenv("PLUGIN_UNIX_SOCKET_DIR"), "s")
	switch name {
	case "garbage":
		fmt.Println("\x00\xff{}||| what is this")
		select {}
	case "silent":
		select {}
	case "exit":
		fmt.Fprintln(os.Stderr, "my engine is not there")
		os.Exit(3)
	case "complaint":
		fmt.Println("connect: no such file or directory")
	case "version":
		fmt.Printf("1|3|unix|%s|grpc|\n", socket)
		select {}
	case "core":
		fmt.Printf("7|2|unix|%s|grpc|\n", socket)
		select {}
	case "netrpc":
		fmt.Printf("1|2|unix|%s|netrpc|\n", socket)
		select {}
	case "network":
		fmt.Print("1|2|pigeon|nest|grpc|\n")
		select {}
	case "endless":
		b := bytes.Repeat([]byte("x"), 1<<16)
		for {
			if _, err := os.Stdout.Write(b); err != nil {
				os.Exit(1)
			}
		}
	case "nobody":
		fmt.Printf("1|2|unix|%s|grpc|\n", socket)
		select {}
	case "mute": // takes connections and says nothing
		l, err := net.Listen("unix", socket)
		if err != nil {
			os.Exit(1)
		}
		fmt.Printf("1|2|unix|%s|grpc|\n", socket)
		for {
			if _, err := l.Accept(); err != nil {
				os.Exit(1)
			}
		}
	default:
		s := &evil{mode: name}
		plugin.Serve(&plugin.ServeConfig{HandshakeConfig: pluginproc.Handshake, GRPCServer: plugin.DefaultGRPCServer,
			Plugins: plugin.PluginSet{"driver": evilPlugin{s: s}}})
	}
	return true
}

type evilPlugin struct {
	plugin.NetRPCUnsupportedPlugin
	s *evil
}

func (p evilPlugin) GRPCServer(_ *plugin.GRPCBroker, to *grpc.Server) error {
	pluginpb.RegisterBasePluginServer(to, p.s)
	driverpb.RegisterDriverServer(to, p.s)
	return nil
}

func (evilPlugin) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.ErrUnsupported
}

// evil speaks the wire, and says what it should not.
type evil struct {
	pluginpb.UnimplementedBasePluginServer
	driverpb.UnimplementedDriverServer
	mode string
}

func (e *evil) PluginInfo(ctx context.Context, _ *pluginpb.PluginInfoRequest) (*pluginpb.PluginInfoResponse, error) {
	r := &pluginpb.PluginInfoResponse{Type: pluginpb.PluginType_DRIVER, Name: "evil", PluginVersion: "v0.0.1", PluginApiVersions: []string{"v0.1.0"}}
	switch e.mode {
	case "api":
		r.PluginApiVersions = []string{"v9.0.0", "v0.2.0"}
	case "noapi":
		r.PluginApiVersions = nil
	case "badapi":
		r.PluginApiVersions = []string{"latest", "v0.1.0"}
	case "spelling":
		r.PluginApiVersions = []string{"0.1"}
	case "device":
		r.Type = pluginpb.PluginType_DEVICE
	case "name":
		r.Name = "../../etc/passwd"
	case "longname":
		r.Name = strings.Repeat("x", 1<<20)
	case "pluginversion":
		r.PluginVersion = "\x1b[31mred"
	case "hang":
		<-ctx.Done()
	case "die":
		os.Exit(9)
	case "huge":
		r.Name = strings.Repeat("x", 17<<20)
	}
	return r, nil
}

func (e *evil) ConfigSchema(context.Context, *pluginpb.ConfigSchemaRequest) (*pluginpb.ConfigSchemaResponse, error) {
	return &pluginpb.ConfigSchemaResponse{}, nil
}

func (e *evil) SetConfig(context.Context, *pluginpb.SetConfigRequest) (*pluginpb.SetConfigResponse, error) {
	return &pluginpb.SetConfigResponse{}, nil
}

func attr(typ string) *pluginpb.Spec {
	return &pluginpb.Spec{Block: &pluginpb.Spec_Attr{Attr: &pluginpb.Attr{Name: "x", Type: typ}}}
}

func (e *evil) TaskConfigSchema(context.Context, *driverpb.TaskConfigSchemaRequest) (*driverpb.TaskConfigSchemaResponse, error) {
	r := &driverpb.TaskConfigSchemaResponse{}
	switch e.mode {
	case "deep":
		r.Spec = attr("string")
		for range 2000 {
			r.Spec = &pluginpb.Spec{Block: &pluginpb.Spec_BlockValue{BlockValue: &pluginpb.Block{Name: "x", Nested: r.Spec}}}
		}
	case "wide":
		list := &pluginpb.Array{}
		for range 11_000 {
			list.Values = append(list.Values, attr("string"))
		}
		r.Spec = &pluginpb.Spec{Block: &pluginpb.Spec_Array{Array: list}}
	case "longtype":
		r.Spec = attr(strings.Repeat("list(", 1<<20))
	case "kindless":
		r.Spec = &pluginpb.Spec{Block: &pluginpb.Spec_Object{Object: &pluginpb.Object{Attributes: map[string]*pluginpb.Spec{"a": {}}}}}
	}
	return r, nil
}

func (e *evil) Capabilities(context.Context, *driverpb.CapabilitiesRequest) (*driverpb.CapabilitiesResponse, error) {
	if e.mode == "empty" {
		return &driverpb.CapabilitiesResponse{}, nil
	}
	return &driverpb.CapabilitiesResponse{Capabilities: &driverpb.DriverCapabilities{SendSignals: true, Exec: true}}, nil
}

func (e *evil) Fingerprint(_ *driverpb.FingerprintRequest, s grpc.ServerStreamingServer[driverpb.FingerprintResponse]) error {
	for i := 0; ; i++ {
		switch e.mode {
		case "flood":
			if err := s.Send(&driverpb.FingerprintResponse{Health: driverpb.FingerprintResponse_HEALTHY, HealthDescription: fmt.Sprint(i)}); err != nil {
				return err
			}
			continue
		case "hugestream":
			return s.Send(&driverpb.FingerprintResponse{HealthDescription: strings.Repeat("x", 17<<20)})
		case "broken":
			return errors.New("no idea")
		}
		<-s.Context().Done()
		return s.Context().Err()
	}
}

func (e *evil) StartTask(_ context.Context, r *driverpb.StartTaskRequest) (*driverpb.StartTaskResponse, error) {
	if e.mode == "startdie" {
		os.Exit(1)
	}
	if e.mode == "empty" {
		return &driverpb.StartTaskResponse{}, nil
	}
	return &driverpb.StartTaskResponse{Handle: &driverpb.TaskHandle{Version: 3, DriverState: []byte("state")}}, nil
}

func (e *evil) RecoverTask(_ context.Context, r *driverpb.RecoverTaskRequest) (*driverpb.RecoverTaskResponse, error) {
	if r.Handle.Config.Id == "" || string(r.Handle.DriverState) != "state" || r.TaskId != "" {
		os.Exit(1)
	}
	return &driverpb.RecoverTaskResponse{}, nil
}

func (e *evil) WaitTask(ctx context.Context, r *driverpb.WaitTaskRequest) (*driverpb.WaitTaskResponse, error) {
	switch {
	case e.mode == "empty":
		return &driverpb.WaitTaskResponse{}, nil
	case r.TaskId == "unknown":
		return nil, errors.New("task not found for given id")
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (e *evil) StopTask(context.Context, *driverpb.StopTaskRequest) (*driverpb.StopTaskResponse, error) {
	return nil, errors.New("rpc error: \xff broken")
}

func (e *evil) DestroyTask(_ context.Context, r *driverpb.DestroyTaskRequest) (*driverpb.DestroyTaskResponse, error) {
	if !r.Force {
		return nil, errors.New("it is running")
	}
	return &driverpb.DestroyTaskResponse{}, nil
}

func (e *evil) InspectTask(context.Context, *driverpb.InspectTaskRequest) (*driverpb.InspectTaskResponse, error) {
	return &driverpb.InspectTaskResponse{}, nil
}

func (e *evil) TaskStats(_ *driverpb.TaskStatsRequest, s grpc.ServerStreamingServer[driverpb.TaskStatsResponse]) error {
	switch e.mode {
	case "flood":
		for {
			if err := s.Send(&driverpb.TaskStatsResponse{Stats: &driverpb.TaskStats{}}); err != nil {
				return err
			}
		}
	case "empty":
		return s.Send(&driverpb.TaskStatsResponse{})
	}
	<-s.Context().Done() // never answers
	return s.Context().Err()
}

func (e *evil) TaskEvents(_ *driverpb.TaskEventsRequest, s grpc.ServerStreamingServer[driverpb.DriverTaskEvent]) error {
	for e.mode == "flood" {
		if err := s.Send(&driverpb.DriverTaskEvent{TaskId: "x", Message: strings.Repeat("x", 10_000)}); err != nil {
			return err
		}
	}
	return nil
}

func (e *evil) ExecTask(context.Context, *driverpb.ExecTaskRequest) (*driverpb.ExecTaskResponse, error) {
	return &driverpb.ExecTaskResponse{Stdout: []byte("out"), Stderr: []byte("err"), Result: &driverpb.ExitResult{ExitCode: 4}}, nil
}

func (e *evil) ExecTaskStreaming(s grpc.BidiStreamingServer[driverpb.ExecTaskStreamingRequest, driverpb.ExecTaskStreamingResponse]) error {
	switch e.mode {
	case "empty":
		return nil // no result
	case "flood":
		for {
			if err := s.Send(&driverpb.ExecTaskStreamingResponse{Stdout: &driverpb.ExecTaskStreamingIOOperation{Data: []byte("x")}}); err != nil {
				return err
			}
		}
	}
	return errors.New("driver does not support exec")
}

// A program that is no plugin is an error that says what it did; nothing of it is
// left, however often it is tried.
func TestHostileHandshake(t *testing.T) {
	for mode, want := range map[string]string{
		"garbage":   "error parsing core protocol version",
		"exit":      `it ended with exit status 3; its last words: "my engine is not there"`,
		"complaint": "connect: no such file or directory",
		"version":   "incompatible API version",
		"core":      "incompatible core API version",
		"netrpc":    "unsupported plugin protocol",
		"network":   "unknown address type",
		"endless":   "Unrecognized remote plugin message",
		"nobody":    "PluginInfo",
		"api":       "the plugin speaks [\"v9.0.0\" \"v0.2.0\"], we speak v0.1.0", "noapi": "no common version", "badapi": `"latest" is no version`,
		"device": "it is of type DEVICE", "name": `name "../../etc/passwd"`, "longname": `name "xxx`, "pluginversion": "version",
		"die": "it ended: exit status 9", "huge": "larger than max",
		"deep": "nested more than 64 deep", "wide": "has more than 10000 parts", "longtype": "has a text of 5242880 bytes", "kindless": "schema.a: has no kind",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			tries := 1
			if mode == "device" { // FF-071
				tries = 5
			}
			for range tries {
				l, _ := launch(t, "h-"+mode)
				_, err := driverplugin.Launch(bounded(t), self(t), l)
				require.ErrorIs(t, err, driverplugin.ErrLaunch)
				require.ErrorContains(t, err, want)
				require.Equal(t, mode == "device", errors.Is(err, drivermanager.ErrOtherKind))
				require.Less(t, len(err.Error()), 4000)
				require.Empty(t, alive(l))
				require.NoDirExists(t, l.Dir)
			}
		})
	}
}

// One that says nothing is waited for no longer than the caller wants.
func TestHostileSilence(t *testing.T) {
	for _, mode := range []string{"silent", "mute", "hang"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			l, _ := launch(t, "h-"+mode)
			ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
			defer cancel()
			began := time.Now()
			_, err := driverplugin.Launch(ctx, self(t), l)
			require.ErrorIs(t, err, driverplugin.ErrLaunch)
			require.Less(t, time.Since(began), 10*time.Second)
			require.Empty(t, alive(l))
			require.NoDirExists(t, l.Dir)
		})
	}
}

func TestHostileNothing(t *testing.T) {
	l, _ := launch(t, "fake")
	_, err := driverplugin.Launch(bounded(t), filepath.Join(t.TempDir(), "none"), l)
	require.ErrorIs(t, err, driverplugin.ErrLaunch)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = driverplugin.Launch(bounded(t), "/bin/true", l)
	require.ErrorIs(t, err, driverplugin.ErrLaunch)
	require.NoDirExists(t, l.Dir)
}

// Answers that lack everything are errors, or nothing, never a crash.
func TestHostileAnswers(t *testing.T) {
	p, _ := start(t, "h-empty")
	d, ctx := p.Driver().(whole), bounded(t)
	_, err := d.Start(ctx, fullTask)
	require.ErrorContains(t, err, "gave no handle")
	res, err := d.Wait(ctx, "x")
	require.NoError(t, err)
	require.Equal(t, -1, res.Code)
	st, err := d.Inspect(ctx, "x")
	require.NoError(t, err)
	require.Equal(t, "unknown", st.State)
	c, err := d.Stats(ctx, "x", time.Second)
	require.NoError(t, err)
	_, ok := <-c
	require.False(t, ok)
	require.ErrorIs(t, d.Signal(ctx, "x", "SIGHUP"), driver.ErrNotImplemented)
	require.Error(t, d.Stop(ctx, "x", "", 0))

	p, _ = start(t, "h-empty")
	_, err = p.Driver().(driver.Execer).Exec(ctx, "x", driver.ExecRequest{Command: []string{"x"}})
	require.ErrorIs(t, err, driver.ErrNotImplemented)
}

// A driver of other origin, as far as it goes.
func TestForeignDriver(t *testing.T) {
	p, _ := start(t, "h-spelling")
	d, ctx := p.Driver().(whole), bounded(t)
	h, err := d.Start(ctx, fullTask)
	require.NoError(t, err)
	require.Equal(t, 3, h.Version)
	require.NoError(t, d.Recover(ctx, h), "with a config, and with no other id")
	require.ErrorIs(t, d.Destroy(ctx, driver.TaskRef{ID: fullTask.ID, Handle: h}, false), driver.ErrTaskRunning)
	require.NoError(t, d.Destroy(ctx, driver.TaskRef{ID: fullTask.ID, Handle: h}, true))
	_, err = d.Wait(ctx, "unknown")
	require.ErrorIs(t, err, driver.ErrTaskNotFound)

	// One of the two ways to run a command is enough.
	var out, errs bytes.Buffer
	res, err := d.Exec(ctx, "x", driver.ExecRequest{Command: []string{"a"}, Stdout: &out, Stderr: &errs})
	require.NoError(t, err)
	require.Equal(t, driver.ExitResult{Code: 4}, res)
	require.Equal(t, "outerr", out.String()+errs.String())
	_, err = d.Exec(ctx, "x", driver.ExecRequest{Command: []string{"a"}, TTY: true})
	require.ErrorIs(t, err, driver.ErrNotImplemented)
	_, err = d.Exec(ctx, "x", driver.ExecRequest{Command: []string{"a"}, Env: []string{"A=1"}})
	require.ErrorIs(t, err, driver.ErrNotImplemented, "rather than without them")

	// Stats that never come hold nobody up.
	began := time.Now()
	sctx, cancel := context.WithCancel(ctx)
	c, err := d.Stats(sctx, "unknown", time.Hour)
	require.NoError(t, err)
	require.Less(t, time.Since(began), 10*time.Second)
	cancel()
	_, ok := <-c
	require.False(t, ok)

	for _, bad := range []*driver.Handle{nil, {Driver: "other"}, {Driver: "evil"}, {Driver: "evil", State: []byte(`"AAAA"`)}, {Driver: "evil", State: []byte(`""`)}} {
		require.Error(t, d.Recover(ctx, bad))
	}
}

// Streams without end take neither memory nor the processor, and end when asked.
func TestHostileFloods(t *testing.T) {
	p, _ := start(t, "h-flood")
	d, ctx := p.Driver().(whole), bounded(t)
	fctx, cancel := context.WithCancel(ctx)
	fps, err := d.Fingerprint(fctx)
	require.NoError(t, err)
	events, err := d.Events(fctx)
	require.NoError(t, err)
	stats, err := d.Stats(fctx, "x", time.Second)
	require.NoError(t, err)
	over := time.After(500 * time.Millisecond)
	n := 0
	for open := true; open; {
		select {
		case <-fps:
			n++
		case <-events:
			n++
		case <-stats:
			n++
		case <-over:
			open = false
		}
	}
	require.Less(t, n, 3*(burst+100), "a burst, then no more than one in 20 ms each")
	cancel()
	for range fps {
	}
	for range events {
	}
	for range stats {
	}
	full := errors.New("enough")
	_, err = d.Exec(ctx, "x", driver.ExecRequest{Command: []string{"x"}, Stdout: refuser{full}})
	require.ErrorIs(t, err, full)
	require.False(t, closed(p.Done()))
}

const burst = 100

type refuser struct{ err error }

func (r refuser) Write([]byte) (int, error) { return 0, r.err }

// A fingerprint that cannot be had makes the driver unhealthy and is asked for
// again; the driver goes on.
func TestHostileFingerprint(t *testing.T) {
	for mode, want := range map[string]string{"broken": "no idea", "hugestream": "larger than max"} {
		t.Run(mode, func(t *testing.T) {
			p, _ := start(t, "h-"+mode)
			ctx, cancel := context.WithCancel(bounded(t))
			fps, err := p.Driver().Fingerprint(ctx)
			require.NoError(t, err)
			fp := <-fps
			require.Equal(t, driver.Unhealthy, fp.Health)
			require.Contains(t, fp.Description, want)
			cancel()
			for range fps {
			}
		})
	}
	p, _ := start(t, "h-startdie")
	fps, err := p.Driver().Fingerprint(bounded(t))
	require.NoError(t, err)
	_, err = p.Driver().Start(bounded(t), fullTask)
	require.ErrorIs(t, err, driver.ErrPluginGone)
	last := driver.Fingerprint{}
	for last = range fps {
	}
	require.Equal(t, driver.Unhealthy, last.Health)
	require.Contains(t, last.Description, "plugin process is gone")
}
