// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin"
	"github.com/nodekeep/nodekeep/driver/rawexec"
	"github.com/nodekeep/nodekeep/supervisor"
)

// The drivers that this binary is when roleEnv names one. ownEnv is a directory of
// their own, and marks them and their supervisors.
const (
	roleEnv    = "NODEKEEP_TEST_ROLE"
	ownEnv     = "NODEKEEP_TEST_OWN"
	roleRemote = "remote"
	rolePipes  = "pipes"
)

// playPlugin is the main of a driver, if this process is one.
func playPlugin() bool {
	switch os.Getenv(roleEnv) {
	case roleRemote:
		own := os.Getenv(ownEnv)
		pool, err := supervisor.NewPool(supervisor.PoolConfig{Dir: own, Env: []string{ownEnv + "=" + own, "GORACE=atexit_sleep_ms=0"}})
		if err != nil {
			panic(err)
		}
		d, err := rawexec.New(rawexec.Config{Enabled: true})(pool)
		if err != nil {
			panic(err)
		}
		driverplugin.Serve(remote{d.(whole)})
	case rolePipes:
		log := driverplugin.Logger()
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGUSR1)
		go func() {
			for range asked {
				for i := range 1000 {
					log.Warn(fmt.Sprintf("said %d of 1000", i))
				}
			}
		}()
		driverplugin.Serve(&pipes{tasks: map[string]*child{}})
	default:
		return false
	}
	return true
}

// whole is what raw_exec can do.
type whole interface {
	driver.Driver
	driver.Signaler
	driver.Inspector
	driver.Execer
	driver.Meter
}

// remote is raw_exec as a program of its own, under another name.
type remote struct{ whole }

func (r remote) Info() driver.Info {
	i := r.whole.Info()
	i.Name = roleRemote
	return i
}

func (r remote) Start(ctx context.Context, cfg driver.TaskConfig) (*driver.Handle, error) {
	return renamed(r.whole.Start(ctx, cfg))(roleRemote)
}

func (r remote) Recover(ctx context.Context, h *driver.Handle) error {
	h, _ = renamed(h, nil)(rawexec.Name)
	return r.whole.Recover(ctx, h)
}

func (r remote) Destroy(ctx context.Context, ref driver.TaskRef, force bool) error {
	ref.Handle, _ = renamed(ref.Handle, nil)(rawexec.Name)
	return r.whole.Destroy(ctx, ref, force)
}

func renamed(h *driver.Handle, err error) func(string) (*driver.Handle, error) {
	return func(name string) (*driver.Handle, error) {
		if h == nil || err != nil {
			return h, err
		}
		c := *h
		c.Driver = name
		return &c, nil
	}
}

// pipes is a driver as many are: it opens the pipes it is given for writing only,
// and its tasks are its children.
type pipes struct {
	mu    sync.Mutex
	tasks map[string]*child
}

type child struct {
	h    *driver.Handle
	done chan struct{}
	exit driver.ExitResult
}

func (*pipes) Info() driver.Info {
	return driver.Info{Name: rolePipes, Version: "1", Capabilities: driver.Capabilities{IdempotentStart: true},
		TaskSchema: driver.Object(map[string]*driver.Schema{"command": driver.Attr("string", true), "args": driver.Attr("list(string)", false)})}
}

func (*pipes) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	ch := make(chan driver.Fingerprint, 1)
	ch <- driver.Fingerprint{Health: driver.Healthy, Attributes: map[string]string{"driver.pipes": "1"}}
	context.AfterFunc(ctx, func() { close(ch) })
	return ch, nil
}

// Events tells of each task that it was seen.
func (p *pipes) Events(ctx context.Context) (<-chan driver.Event, error) {
	ch := make(chan driver.Event)
	go func() {
		defer close(ch)
		told := map[string]bool{}
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			p.mu.Lock()
			var news []string
			for id := range p.tasks {
				if !told[id] {
					told[id] = true
					news = append(news, id)
				}
			}
			p.mu.Unlock()
			for _, id := range news {
				part := strings.Split(id, "/")
				select {
				case ch <- driver.Event{TaskID: id, AllocID: part[0], Task: part[1], Time: time.Now(), Message: "seen", Attrs: map[string]string{"color": "red"}}:
				case <-ctx.Done():
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	}()
	return ch, nil
}

func (p *pipes) find(id string) (*child, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.tasks[id]; t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("%w: %s", driver.ErrTaskNotFound, id)
}

func (p *pipes) Start(_ context.Context, cfg driver.TaskConfig) (*driver.Handle, error) {
	if t, err := p.find(cfg.ID); err == nil {
		return t.h, nil
	}
	var c struct {
		Command string
		Args    []string
	}
	if err := json.Unmarshal(cfg.Config, &c); err != nil {
		return nil, err
	}
	cmd := exec.Command(c.Command, c.Args...)
	cmd.Env, cmd.Dir, cmd.SysProcAttr = cfg.Env, cfg.Dirs.Task, &syscall.SysProcAttr{Setsid: true}
	out, err := os.OpenFile(cfg.Stdio.Stdout, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	errs, err := os.OpenFile(cfg.Stdio.Stderr, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer errs.Close()
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t := &child{h: &driver.Handle{Driver: rolePipes, TaskID: cfg.ID, Version: 1, PID: cmd.Process.Pid, State: []byte("{}")}, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		st := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if t.exit.Code = st.ExitStatus(); st.Signaled() {
			t.exit = driver.ExitResult{Code: 128 + int(st.Signal()), Signal: int(st.Signal())}
		}
		close(t.done)
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tasks[cfg.ID] = t
	return t.h, nil
}

func (p *pipes) Recover(_ context.Context, h *driver.Handle) error {
	_, err := p.find(h.TaskID)
	return err
}

func (p *pipes) Wait(ctx context.Context, id string) (driver.ExitResult, error) {
	t, err := p.find(id)
	if err != nil {
		return driver.ExitResult{}, err
	}
	select {
	case <-t.done:
		return t.exit, nil
	case <-ctx.Done():
		return driver.ExitResult{}, context.Cause(ctx)
	}
}

func (p *pipes) Stop(ctx context.Context, id, _ string, _ time.Duration) error {
	t, err := p.find(id)
	if err != nil {
		return err
	}
	_ = syscall.Kill(-t.h.PID, syscall.SIGKILL)
	_, err = p.Wait(ctx, id)
	return err
}

func (p *pipes) Destroy(ctx context.Context, ref driver.TaskRef, force bool) error {
	t, err := p.find(ref.ID)
	if err != nil {
		return err
	}
	select {
	case <-t.done:
	default:
		if !force {
			return driver.ErrTaskRunning
		}
	}
	if err := p.Stop(ctx, ref.ID, "", 0); err != nil && !errors.Is(err, driver.ErrTaskNotFound) {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.tasks, ref.ID)
	return nil
}
