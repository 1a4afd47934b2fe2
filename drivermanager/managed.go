// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivermanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/keeper"
)

// managed is a driver by its name. It implements every part of the contract and
// passes calls on to the process that is the driver at the moment; what that
// driver has not is ErrNotImplemented.
type managed struct {
	m    *Manager
	name string

	// Under m.mu.
	by    *instance
	cur   driver.Driver // nil while there is no process
	own   driver.Driver // one in this process: there is nothing to follow
	life  int           // counts them
	known bool          // info is
	info  driver.Info
	tasks map[string]*driver.Handle // started or recovered, until Destroy
}

func (d *managed) ready() bool {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	return d.known
}

// current returns the driver and its life, which is later than after. It waits for
// it: no longer than Config.Wait, or patiently, until ctx or the manager ends.
func (d *managed) current(ctx context.Context, after int, patient bool) (cur driver.Driver, life int, err error) {
	limit := d.m.cfg.Wait
	if patient {
		limit = 0
	}
	ended := false
	err = d.m.mu.Await(ctx, limit, func() bool {
		cur, life, ended = d.cur, d.life, d.m.ended
		return ended || cur != nil && life > after
	})
	switch {
	case errors.Is(err, keeper.ErrTooLong):
		return nil, 0, fmt.Errorf("%w: driver %q is not running%s", driver.ErrUnavailable, d.name, d.m.why(d.name))
	case err != nil:
		return nil, 0, err
	case ended:
		return nil, 0, fmt.Errorf("%w: this agent ends", driver.ErrUnavailable)
	}
	return cur, life, nil
}

// repeat calls f, which may be repeated, with the driver of the moment until a
// process lives long enough to answer.
func (d *managed) repeat(ctx context.Context, f func(driver.Driver) error) error {
	life := 0
	for {
		cur, l, err := d.current(ctx, life, false)
		if err != nil {
			return err
		}
		if err = f(cur); !errors.Is(err, driver.ErrPluginGone) || ctx.Err() != nil {
			return err
		}
		life = l
	}
}

func (d *managed) keep(h *driver.Handle) {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	d.tasks[h.TaskID] = h
}

func (d *managed) drop(id string) {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	delete(d.tasks, id)
}

func (d *managed) has(id string) bool {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	return d.tasks[id] != nil
}

// takeUp makes the tasks of the process before known to the next one. One that
// cannot be recovered is its owner's to deal with, who learns of it by Wait.
func (d *managed) takeUp(ctx context.Context, next driver.Driver, log hclog.Logger) {
	d.m.mu.Lock()
	tasks := maps.Clone(d.tasks)
	d.m.mu.Unlock()
	slots := make(chan struct{}, recoverMany)
	var all sync.WaitGroup
	for id, h := range tasks {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, recoverTimeout)
			defer cancel()
			if err := next.Recover(ctx, h); err != nil {
				log.Warn("task cannot be recovered by its driver's new process", "task_id", id, "error", err)
			}
		})
	}
	all.Wait()
	if len(tasks) > 0 {
		log.Info("driver runs again and was given its tasks", "tasks", len(tasks))
	}
}

// Info implements driver.Driver: that of the latest process.
func (d *managed) Info() driver.Info {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	return d.info
}

// Fingerprint implements driver.Driver: the manager's own view, deaths included.
func (d *managed) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	out := make(chan driver.Fingerprint)
	go func() {
		defer close(out)
		var last driver.Fingerprint
		for first := true; ; {
			d.m.mu.Lock()
			i, change, ended := d.by, d.m.mu.Changed(), d.m.ended
			now := driver.Fingerprint{Health: i.health, Description: i.description, Attributes: maps.Clone(i.attributes)}
			d.m.mu.Unlock()
			send := out
			if now.Health == "" || !first && now.Health == last.Health && now.Description == last.Description && maps.Equal(now.Attributes, last.Attributes) {
				send = nil
			}
			if ended && send == nil {
				change = nil
			}
			select {
			case send <- now:
				last, first = now, false
			case <-change:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// Start implements driver.Driver. When the process dies meanwhile, a start that
// can be repeated is; any other is recoverable, as nobody knows how far it came.
func (d *managed) Start(ctx context.Context, cfg driver.TaskConfig) (h *driver.Handle, err error) {
	call := func(cur driver.Driver) error {
		h, err = cur.Start(ctx, cfg)
		return err
	}
	if d.Info().Capabilities.IdempotentStart {
		err = d.repeat(ctx, call)
	} else {
		var cur driver.Driver
		if cur, _, err = d.current(ctx, 0, false); err == nil {
			err = call(cur)
		}
	}
	switch {
	case err == nil && h != nil:
		d.keep(h)
	case errors.Is(err, driver.ErrPluginGone), errors.Is(err, driver.ErrUnavailable):
		err = driver.Recoverable(err)
	}
	return h, err
}

// Recover implements driver.Driver.
func (d *managed) Recover(ctx context.Context, h *driver.Handle) error {
	err := d.repeat(ctx, func(cur driver.Driver) error { return cur.Recover(ctx, h) })
	if err == nil {
		d.keep(h)
	}
	return err
}

// Wait implements driver.Driver. It outlasts processes: the next one knows the task.
func (d *managed) Wait(ctx context.Context, id string) (driver.ExitResult, error) {
	life := 0
	for {
		cur, l, err := d.current(ctx, life, d.has(id))
		if err != nil {
			return driver.ExitResult{}, err
		}
		res, err := cur.Wait(ctx, id)
		if !errors.Is(err, driver.ErrPluginGone) || ctx.Err() != nil || !d.has(id) {
			return res, err
		}
		life = l
	}
}

// Stop implements driver.Driver. Repeated, it has what is left of the grace.
func (d *managed) Stop(ctx context.Context, id, signal string, grace time.Duration) error {
	began := time.Now()
	return d.repeat(ctx, func(cur driver.Driver) error { return cur.Stop(ctx, id, signal, max(0, grace-time.Since(began))) })
}

// Destroy implements driver.Driver.
func (d *managed) Destroy(ctx context.Context, ref driver.TaskRef, force bool) error {
	err := d.repeat(ctx, func(cur driver.Driver) error { return cur.Destroy(ctx, ref, force) })
	if err == nil || errors.Is(err, driver.ErrTaskNotFound) {
		d.drop(ref.ID)
	}
	return err
}

func (d *managed) cannot(what string) error {
	return fmt.Errorf("driver %q: %s: %w", d.name, what, driver.ErrNotImplemented)
}

// Prepare implements driver.Preparer; a driver that is none is prepared.
func (d *managed) Prepare(ctx context.Context, cfg driver.TaskConfig, emit func(driver.Event)) error {
	return d.repeat(ctx, func(cur driver.Driver) error {
		if p, ok := cur.(driver.Preparer); ok {
			return p.Prepare(ctx, cfg, emit)
		}
		return nil
	})
}

// Signal implements driver.Signaler. It is never sent twice: when the process dies
// meanwhile it was sent or was not.
func (d *managed) Signal(ctx context.Context, id, signal string) error {
	cur, _, err := d.current(ctx, 0, false)
	if err != nil {
		return err
	}
	s, ok := cur.(driver.Signaler)
	if !ok {
		return d.cannot("signals")
	}
	return s.Signal(ctx, id, signal)
}

// Inspect implements driver.Inspector.
func (d *managed) Inspect(ctx context.Context, id string) (st driver.TaskStatus, err error) {
	err = d.repeat(ctx, func(cur driver.Driver) (err error) {
		i, ok := cur.(driver.Inspector)
		if !ok {
			return d.cannot("inspect")
		}
		st, err = i.Inspect(ctx, id)
		return err
	})
	return st, err
}

// Exec implements driver.Execer. A command is not run twice.
func (d *managed) Exec(ctx context.Context, id string, req driver.ExecRequest) (driver.ExitResult, error) {
	cur, _, err := d.current(ctx, 0, false)
	if err == nil {
		if x, ok := cur.(driver.Execer); ok {
			return x.Exec(ctx, id, req)
		}
		err = d.cannot("exec")
	}
	if req.Stdin != nil {
		err = errors.Join(err, req.Stdin.Close())
	}
	return driver.ExitResult{}, err
}

// Stats implements driver.Meter. The stream goes on with the next process.
func (d *managed) Stats(ctx context.Context, id string, interval time.Duration) (<-chan driver.Usage, error) {
	ch, life, err := d.stats(ctx, id, interval, 0)
	if err != nil {
		return nil, err
	}
	out := make(chan driver.Usage, 1)
	go func() {
		defer close(out)
		for err == nil {
			for u := range ch {
				select { // a slow reader gets the newest
				case <-out:
				default:
				}
				out <- u
			}
			if ctx.Err() != nil || !d.has(id) || d.lives(ctx, life) {
				return
			}
			ch, life, err = d.stats(ctx, id, interval, life)
		}
	}()
	return out, nil
}

// lives says whether the process of that life is still the driver. Its stream may
// end a moment before the news of its death is here.
func (d *managed) lives(ctx context.Context, life int) bool {
	const news = time.Second
	lives := true
	_ = d.m.mu.Await(ctx, news, func() bool { lives = d.cur != nil && d.life == life; return !lives })
	return lives
}

func (d *managed) stats(ctx context.Context, id string, interval time.Duration, after int) (ch <-chan driver.Usage, life int, err error) {
	for {
		cur, l, err := d.current(ctx, after, false)
		if err != nil {
			return nil, 0, err
		}
		m, ok := cur.(driver.Meter)
		if !ok {
			return nil, 0, d.cannot("stats")
		}
		if ch, err = m.Stats(ctx, id, interval); !errors.Is(err, driver.ErrPluginGone) {
			return ch, l, err
		}
		after = l
	}
}

// CreateNetwork implements driver.Networker.
func (d *managed) CreateNetwork(ctx context.Context, allocID, hostname string) (n *driver.Network, created bool, err error) {
	err = d.repeat(ctx, func(cur driver.Driver) (err error) {
		w, ok := cur.(driver.Networker)
		if !ok {
			return d.cannot("networks")
		}
		n, created, err = w.CreateNetwork(ctx, allocID, hostname)
		return err
	})
	return n, created, err
}

// DestroyNetwork implements driver.Networker.
func (d *managed) DestroyNetwork(ctx context.Context, allocID string, n *driver.Network) error {
	return d.repeat(ctx, func(cur driver.Driver) error {
		w, ok := cur.(driver.Networker)
		if !ok {
			return d.cannot("networks")
		}
		return w.DestroyNetwork(ctx, allocID, n)
	})
}
