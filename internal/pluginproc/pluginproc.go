// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package pluginproc starts the processes of plugins, finds them again after an
// agent restart, and connects to them: go-plugin's handshake and transport, with
// process, stderr and wait our own.
//
//	Launch ──▶ process ──▶ line on stdout ──▶ connection
//	Reattach(Record) ──▶ same pid, start time, boot? ──▶ connection
//
//	<Dir>/process     who the process is, for Sweep
//	<Dir>/stderr      what the plugin logs: a file, so that no death of an agent
//	                  ends a plugin that writes; read by follow.go
//	<Dir>/stderr.pos  how far it was read
//	<Dir>/plugin-dir… the plugin's socket
//
// A plugin lives until Close, or its own end; Detach and the death of the agent
// leave it running. The process is watched by pidfd: nothing polls, and no other
// process that got its number is ever touched.
package pluginproc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
)

var (
	// ErrLaunch says that a program did not become a plugin; the text says why and
	// what it wrote.
	ErrLaunch = errors.New("pluginproc: not a working plugin")
	// ErrStale says that the process of a record is gone, or another one.
	ErrStale = errors.New("pluginproc: the recorded process is gone")
)

// Handshake is what agent and plugin must agree on before they speak.
var Handshake = plugin.HandshakeConfig{
	ProtocolVersion:  2,
	MagicCookieKey:   "NOMAD_PLUGIN_MAGIC_COOKIE",
	MagicCookieValue: "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
}

const (
	// MaxReceive is the largest message taken from a plugin. The wire has no limit
	// there; an agent that took any could be ended by one message. What plugins give
	// us to keep must be small enough to be sent back.
	MaxReceive = 4 * MaxSend
	// MaxSend is the largest message plugins take.
	MaxSend = 4 << 20

	startTimeout = time.Minute
	endTimeout   = 2 * time.Second // for each step of an orderly end
	shutdownCall = "/plugin.GRPCController/Shutdown"
)

// Spec is a plugin to launch. Path, Dir are required.
type Spec struct {
	Path string
	Args []string
	Env  []string // complete, "K=V"; nothing of this process is added
	// Dir is this process's own directory, made 0700 and removed after its end.
	// Keep it short and on tmpfs: a socket's path has 107 bytes.
	Dir     string
	Timeout time.Duration // of the handshake; default a minute
	Log     hclog.Logger  // takes what the plugin logs; nil drops it
}

// Record is what Reattach needs. Its first four fields are those of other agents.
type Record struct {
	Protocol string `json:"Protocol"`
	Network  string `json:"Network"`
	Addr     string `json:"Addr"`
	Pid      int    `json:"Pid"`
	Start    uint64 `json:"Start"` // of the process, in ticks since boot
	BootID   string `json:"BootID"`
	Dir      string `json:"Dir"`
}

// Proc is a plugin's process and the connection to it. Its methods may be called
// from any goroutine.
type Proc struct {
	rec    Record
	proc   process
	conn   *grpc.ClientConn
	client plugin.ClientProtocol
	logs   *follower

	detached atomic.Bool
	let      chan struct{} // closed by Detach
	once     sync.Once
}

// process is an operating system's process, a child or not.
type process interface {
	runner.AttachedRunner
	done() <-chan struct{}
	how() string // it ended
	release()
}

// Launch starts a plugin and blocks until it can be called or ctx ends. After an
// error nothing of it is left. The error is ErrLaunch but for faults of our own.
func Launch(ctx context.Context, spec Spec) (*Proc, error) {
	if spec.Timeout <= 0 {
		spec.Timeout = startTimeout
	}
	if spec.Log == nil {
		spec.Log = hclog.NewNullLogger()
	}
	if err := os.MkdirAll(spec.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("pluginproc: directory of the plugin: %w", err)
	}
	p := &Proc{let: make(chan struct{})}
	var started atomic.Pointer[child]
	cfg := p.config()
	cfg.StartTimeout = spec.Timeout
	cfg.UnixSocketConfig = &plugin.UnixSocketConfig{TempDir: spec.Dir}
	cfg.RunnerFunc = runnerFunc(&spec, p.let, &started, ctx.Err)
	err := p.connect(ctx, cfg, func() {
		if c := started.Load(); c != nil {
			_ = c.kill() // whether it is gone is seen below
		}
	})
	c := started.Load()
	if err == nil {
		if p.logs, err = follow(spec.Dir, spec.Log); err == nil {
			err = p.record(spec.Dir, c)
		}
	}
	if err != nil {
		p.drop()
		if c != nil {
			err = errors.Join(err, c.kill())
			<-c.done()
		}
		if p.logs == nil && c != nil { // what it said is wanted all the more
			p.logs, _ = follow(spec.Dir, spec.Log)
		}
		p.logs.close(true)
		return nil, errors.Join(fmt.Errorf("%w: %s: %w", ErrLaunch, spec.Path, err), os.RemoveAll(spec.Dir))
	}
	return p, nil
}

// record notes who the process is.
func (p *Proc) record(dir string, c *child) error {
	p.proc = c
	p.rec.Protocol, p.rec.Pid, p.rec.Dir = "grpc", c.pid(), dir
	var err error
	p.rec.Start, p.rec.BootID, err = identify(p.rec.Pid)
	return err
}

// Reattach connects to a plugin that an earlier agent launched. It returns
// ErrStale when the process is gone or another one; then Remove the record's rest.
func Reattach(ctx context.Context, rec Record, log hclog.Logger) (*Proc, error) {
	if log == nil {
		log = hclog.NewNullLogger()
	}
	p := &Proc{rec: rec, let: make(chan struct{})}
	found, err := find(rec, p.let)
	if err != nil {
		return nil, err
	}
	p.proc = found
	var addr net.Addr
	switch {
	case rec.Protocol != "grpc":
		err = fmt.Errorf("%w: protocol %q", ErrStale, rec.Protocol)
	case rec.Network == "unix":
		addr, err = net.ResolveUnixAddr("unix", rec.Addr)
	default:
		addr, err = net.ResolveTCPAddr(rec.Network, rec.Addr)
	}
	if err == nil {
		cfg := p.config()
		cfg.Reattach = &plugin.ReattachConfig{Protocol: plugin.ProtocolGRPC, Addr: addr, Pid: rec.Pid,
			ReattachFunc: func() (runner.AttachedRunner, error) { return found, nil }}
		err = p.connect(ctx, cfg, func() {})
	}
	if err == nil {
		p.logs, err = follow(rec.Dir, log)
	}
	if err != nil {
		p.drop()
		found.release()
		return nil, fmt.Errorf("pluginproc: reattach pid %d: %w", rec.Pid, err)
	}
	return p, nil
}

// Remove ends what is left of a record: its process, if it is still the same, and
// its directory.
func Remove(rec Record) error {
	if found, err := find(rec, nil); err == nil {
		killErr := found.kill()
		<-found.done()
		found.release()
		if killErr != nil {
			return killErr
		}
	}
	if rec.Dir == "" {
		return nil
	}
	return os.RemoveAll(rec.Dir)
}

// Sweep removes the processes and directories below root that Launch made and that
// no record in keep is of: those of agents that died before they noted them.
func Sweep(root string, keep []Record) error {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		raw, err := os.ReadFile(filepath.Join(dir, processName))
		if err != nil || slices.ContainsFunc(keep, func(r Record) bool { return r.Dir == dir }) {
			continue // not ours, or accounted for
		}
		var rec Record
		if json.Unmarshal(raw, &rec) != nil { // it was being written
			rec = Record{}
		}
		rec.Dir = dir
		errs = append(errs, Remove(rec))
	}
	return errors.Join(errs...)
}

// config is what launching and reattaching have in common. go-plugin's own
// logger would repeat what we say better.
func (p *Proc) config() *plugin.ClientConfig {
	return &plugin.ClientConfig{
		HandshakeConfig:  Handshake,
		Plugins:          plugin.PluginSet{},
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		SkipHostEnv:      true,
		Logger:           hclog.NewNullLogger(),
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxReceive), grpc.MaxCallSendMsgSize(MaxSend)),
			grpc.WithChainUnaryInterceptor(p.shutdown),
		},
	}
}

// shutdown bounds go-plugin's own call that ends the plugin, and keeps it from
// being made where the plugin is to live.
func (p *Proc) shutdown(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if method != shutdownCall {
		return next(ctx, method, req, reply, cc, opts...)
	}
	if p.detached.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	return next(ctx, method, req, reply, cc, opts...)
}

// connect does the handshake. kill ends it early.
func (p *Proc) connect(ctx context.Context, cfg *plugin.ClientConfig, kill func()) error {
	c := plugin.NewClient(cfg)
	type outcome struct {
		cp  plugin.ClientProtocol
		err error
	}
	ready := make(chan outcome, 1)
	go func() {
		cp, err := c.Client()
		ready <- outcome{cp, err}
	}()
	var o outcome
	select {
	case o = <-ready:
	case <-ctx.Done():
		kill()
		o = <-ready // the handshake ends with the process, or with its own timeout
		if o.err == nil {
			o.err = context.Cause(ctx)
		}
	}
	if o.cp != nil {
		p.client = o.cp
		p.conn = o.cp.(*plugin.GRPCClient).Conn
	}
	if o.err != nil {
		return o.err
	}
	if r := c.ReattachConfig(); r != nil && cfg.Reattach == nil {
		p.rec.Network, p.rec.Addr = r.Addr.Network(), r.Addr.String()
	}
	return nil
}

// drop ends the connection and lets the process be.
func (p *Proc) drop() {
	p.detached.Store(true)
	p.once.Do(func() { close(p.let) })
	if p.client != nil {
		_ = p.client.Close() // says only that it was closed already
	}
}

// Conn is the connection. It does not outlive the process.
func (p *Proc) Conn() grpc.ClientConnInterface { return p.conn }

// Record is what a later agent needs to reattach.
func (p *Proc) Record() Record { return p.rec }

// Done is closed when the process has ended.
func (p *Proc) Done() <-chan struct{} { return p.proc.done() }

// Gone says whether the process has ended.
func (p *Proc) Gone() bool {
	select {
	case <-p.proc.done():
		return true
	default:
		return false
	}
}

// How says how the process ended.
func (p *Proc) How() string { return p.proc.how() }

// Close asks the plugin to end, kills it when it does not within seconds, and
// removes its directory. It blocks until the process is gone, however ctx ends:
// ctx only shortens the patience. Closing again is no error.
func (p *Proc) Close(ctx context.Context) error {
	if !p.Gone() && !p.detached.Load() && ctx.Err() == nil {
		_ = p.client.Close() // whatever it says, the process tells
		t := time.NewTimer(endTimeout)
		defer t.Stop()
		select {
		case <-p.Done():
		case <-t.C:
		case <-ctx.Done():
		}
	}
	err := p.proc.Kill(ctx)
	if err == nil {
		<-p.Done()
	}
	p.drop()
	p.logs.close(true)
	p.proc.release()
	return errors.Join(err, os.RemoveAll(p.rec.Dir))
}

// Detach ends the connection. The plugin lives on; a later agent reattaches.
func (p *Proc) Detach() {
	p.drop()
	p.logs.close(false)
	p.proc.release()
}

// tail is the end of what a plugin wrote, for people.
func tail(dir string) string {
	b, err := os.ReadFile(filepath.Join(dir, stderrName))
	if err != nil {
		return ""
	}
	const enough = 1 << 10
	if len(b) > enough {
		b = b[len(b)-enough:]
	}
	return strings.ToValidUTF8(strings.TrimSpace(string(b)), "?")
}
