// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin"
	"github.com/nodekeep/nodekeep/driver/drivertest"
)

// rich is a driver with every optional part. It says what it was asked, through
// the answers themselves or through "said", a signal that tells.
type rich struct {
	*drivertest.Fake
	mu     sync.Mutex
	said   []string
	events chan driver.Event
	setup  driver.Setup
}

// bare hides the parts of a driver that are not of the contract's core.
type bare struct{ driver.Driver }

func newRich(role string, f *drivertest.Fake) driver.Driver {
	switch role {
	case "bare":
		f.Capabilities = &driver.Capabilities{}
		return bare{f}
	case "rich":
		return &rich{Fake: f, events: make(chan driver.Event, 10)}
	}
	return nil
}

func (d *rich) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.said = append(d.said, fmt.Sprintf(format, args...))
}

func (d *rich) Info() driver.Info {
	return driver.Info{Name: "rich", Version: "1.2.3",
		Capabilities: driver.Capabilities{SendSignals: true, Exec: true, FSIsolation: driver.FSImage, NetIsolation: []string{"host", "group"},
			MustInitNetwork: true, NoMounts: true, DynamicUsers: true, CollectsLogs: true, RemountSecrets: true},
		TaskSchema: fakeSchema,
		ConfigSchema: driver.Object(map[string]*driver.Schema{
			"endpoint": driver.Attr("string", true),
			"workers":  driver.Default(driver.Attr("number", false), "3"),
			"ratio":    driver.Attr("number", false),
			"labels":   driver.Attr("map(string)", false),
			"mirror": {Kind: driver.KindBlockList, Nested: driver.Object(map[string]*driver.Schema{
				"url": driver.Attr("string", true), "tls": driver.Default(driver.Attr("bool", false), "true")})},
		})}
}

func (d *rich) Configure(_ context.Context, s driver.Setup) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setup = s
	if strings.Contains(string(s.Config), "refuse") {
		return errors.New("endpoint cannot be reached")
	}
	return nil
}

func (d *rich) Start(ctx context.Context, cfg driver.TaskConfig) (*driver.Handle, error) {
	cfg.Owner.AllocID += "" // as it came
	raw, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	d.say("%s", raw)
	h, err := d.Fake.Start(ctx, cfg)
	if h != nil {
		h.Driver = "rich"
		h.Network = &driver.TaskNetwork{IP: "10.1.2.3", PortMap: map[string]int{"http": 80}, AutoAdvertise: true}
	}
	return h, err
}

func (d *rich) Recover(ctx context.Context, h *driver.Handle) error {
	own := *h
	own.Driver = "fake"
	return d.Fake.Recover(ctx, &own)
}

// Destroy takes panic as an order.
func (d *rich) Destroy(ctx context.Context, ref driver.TaskRef, force bool) error {
	switch ref.ID {
	case "panic":
		panic("destroyed myself")
	case "proof":
		return fmt.Errorf("scope %s, cgroup %s, force %v, handle %s", ref.Scope, ref.Cgroup, force, ref.Handle.TaskID)
	}
	if ref.Handle != nil {
		own := *ref.Handle
		own.Driver = "fake"
		ref.Handle = &own
	}
	return d.Fake.Destroy(ctx, ref, force)
}

func (d *rich) Prepare(_ context.Context, cfg driver.TaskConfig, emit func(driver.Event)) error {
	emit(driver.Event{TaskID: cfg.ID, Message: "pulling", Attrs: map[string]string{"layer": "1"}})
	emit(driver.Event{TaskID: cfg.ID, Message: "slow", Err: errors.New("mirror is down")})
	if strings.Contains(string(cfg.Config), "busy") {
		return driver.Recoverable(errors.New("no image yet"))
	}
	return nil
}

// Signal tells what it got, and takes some orders.
func (d *rich) Signal(ctx context.Context, id, signal string) error {
	switch signal {
	case "TELL":
		d.mu.Lock()
		defer d.mu.Unlock()
		setup, err := json.Marshal(d.setup)
		return errors.Join(err, errors.New(strings.Join(append(d.said, string(setup)), "\n")))
	case "EVENT":
		d.events <- driver.Event{TaskID: id, Time: time.Unix(1000, 5).UTC(), Message: "hello", Attrs: map[string]string{"k": "v"}}
		return nil
	case "LOG":
		log := driverplugin.Logger().Named("rich")
		log.Info("an answer", "n", 42, "list", []string{"a", "b"}, "nothing", nil)
		log.Warn("beware")
		log.Error("woe", "error", errors.New("cause"))
		log.Trace("detail")
		fmt.Println("printed")
		fmt.Fprintln(os.Stderr, "[WARN] as a prefix")
		return nil
	case "MANY": // as many lines as its id says
		n := 0
		if _, err := fmt.Sscan(id, &n); err != nil {
			return err
		}
		log := driverplugin.Logger()
		for i := range n {
			log.Info("line", "i", i)
			fmt.Printf("stdout %d\n", i) // nobody may read that
		}
		return nil
	case "LATER": // once the agent is dead, as many lines as the id says
		agent := os.Getppid()
		go func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for os.Getppid() == agent {
				<-tick.C
			}
			_ = d.Signal(context.WithoutCancel(ctx), id, "MANY") // nobody to tell
		}()
		return nil
	case "KINDS":
		for _, e := range contractErrors {
			if strings.HasSuffix(e.Error(), id) {
				return fmt.Errorf("because of %q: %w", id, e)
			}
		}
	}
	return d.Fake.Signal(ctx, id, signal)
}

var contractErrors = []error{driver.ErrTaskNotFound, driver.ErrTaskExists, driver.ErrTaskRunning, driver.ErrTaskExited, driver.ErrNotImplemented,
	driver.ErrUnavailable, driver.ErrPluginGone, driver.ErrUnknownSignal, driver.ErrForeignScope, driver.ErrCommand}

func (d *rich) Inspect(ctx context.Context, id string) (driver.TaskStatus, error) {
	st, err := d.Fake.Inspect(ctx, id)
	st.StartedAt = time.Unix(100, 0).UTC()
	return st, err
}

// Exec repeats its input after the command line.
func (d *rich) Exec(_ context.Context, id string, req driver.ExecRequest) (driver.ExitResult, error) {
	if id == "nobody" {
		return driver.ExitResult{}, fmt.Errorf("%w: %s", driver.ErrTaskNotFound, id)
	}
	fmt.Fprintf(req.Stdout, "%s %v %v %v|", id, req.Command, req.Env, req.Size)
	if _, err := io.Copy(req.Stdout, req.Stdin); err != nil {
		return driver.ExitResult{}, err
	}
	if req.Stderr != nil {
		fmt.Fprint(req.Stderr, "complaint")
	}
	return driver.ExitResult{Code: 3, Signal: 0, OOMKilled: true}, nil
}

func (d *rich) Events(ctx context.Context) (<-chan driver.Event, error) {
	out := make(chan driver.Event)
	go func() {
		defer close(out)
		for {
			select {
			case e := <-d.events:
				select {
				case out <- e:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (d *rich) CreateNetwork(_ context.Context, allocID, hostname string) (*driver.Network, bool, error) {
	if hostname == "none" {
		return nil, false, nil
	}
	return &driver.Network{Mode: "group", Path: "/run/netns/" + allocID, Labels: map[string]string{"h": hostname}, Hostname: hostname, Address: "10.0.0.1"}, true, nil
}

func (d *rich) DestroyNetwork(_ context.Context, allocID string, n *driver.Network) error {
	return fmt.Errorf("alloc %s: %+v", allocID, *n)
}
