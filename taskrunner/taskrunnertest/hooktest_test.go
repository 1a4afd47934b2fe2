// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunnertest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// ports is a pool outside the agent.
type ports struct {
	mu   sync.Mutex
	next int
	held map[string]int
}

func (p *ports) take(key string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n, ok := p.held[key]; ok {
		return n
	}
	p.next++
	p.held[key] = 8000 + p.next
	return p.held[key]
}

func (p *ports) give(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.held, key)
}

func (p *ports) names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.held))
}

type lease struct {
	Key  string
	Port int
}

// hook leases a port. How it does so is changed by edit.
func (p *ports) hook(edit func(*taskrunner.Hook[lease])) taskrunner.HookFunc {
	return func(*spec.Alloc, *spec.Task) (taskrunner.AnyHook, error) {
		h := &taskrunner.Hook[lease]{
			Name: "port",
			Prestart: func(_ context.Context, r *taskrunner.Request, l *lease) (c taskrunner.Contribution, err error) {
				l.Key = r.Alloc.ID + "/" + r.Task.Name
				l.Port = p.take(l.Key)
				c.Env = map[string]string{"PORT": strconv.Itoa(l.Port)}
				return c, nil
			},
			Stop: func(_ context.Context, r *taskrunner.Request, _ *lease) error {
				p.give(r.Alloc.ID + "/" + r.Task.Name)
				return nil
			},
		}
		if edit != nil {
			edit(h)
		}
		return h, nil
	}
}

func config(edit func(*ports, *taskrunner.Hook[lease])) HookConfig {
	return HookConfig{New: func(*testing.T) (taskrunner.HookFunc, func() []string) {
		p := &ports{held: map[string]int{}}
		return p.hook(func(h *taskrunner.Hook[lease]) {
			if edit != nil {
				edit(p, h)
			}
		}), p.names
	}}
}

func TestGoodHook(t *testing.T) {
	HookTest(t, config(nil))
}

// Every way to be wrong is found.
func TestBadHooks(t *testing.T) {
	type pre = func(context.Context, *taskrunner.Request, *lease) (taskrunner.Contribution, error)
	for name, tc := range map[string]struct {
		edit func(*ports, *taskrunner.Hook[lease])
		want string
	}{
		"never gives back": {func(_ *ports, h *taskrunner.Hook[lease]) { h.Stop = nil }, "still held"},
		"gives back at every exit": {func(p *ports, h *taskrunner.Hook[lease]) {
			h.Exited = func(_ context.Context, _ *taskrunner.Request, l *lease) error {
				p.give(l.Key)
				*l = lease{}
				return nil
			}
		}, "outputs of the first attempt"},
		"forgets outputs that are done": {func(_ *ports, h *taskrunner.Hook[lease]) {
			first := h.Prestart
			h.Prestart = pre(func(ctx context.Context, r *taskrunner.Request, l *lease) (c taskrunner.Contribution, err error) {
				if l.Port != 0 {
					return c, nil
				}
				return first(ctx, r, l)
			})
		}, "outputs of the first attempt"},
		"acquires by a key that does not survive": {func(p *ports, h *taskrunner.Hook[lease]) {
			h.Prestart = pre(func(_ context.Context, r *taskrunner.Request, l *lease) (c taskrunner.Contribution, err error) {
				if l.Port == 0 {
					p.mu.Lock()
					l.Key = fmt.Sprint("lease-", p.next)
					p.mu.Unlock()
					l.Port = p.take(l.Key)
				}
				c.Env = map[string]string{"PORT": strconv.Itoa(l.Port)}
				return c, nil
			})
			h.Stop = func(_ context.Context, _ *taskrunner.Request, l *lease) error { p.give(l.Key); return nil }
		}, "still held"},
		"cannot stop what never was": {func(_ *ports, h *taskrunner.Hook[lease]) {
			h.Stop = func(_ context.Context, _ *taskrunner.Request, l *lease) error {
				if l.Key == "" {
					panic("no key")
				}
				return nil
			}
		}, "still held"},
		"gives back when the agent goes": {func(p *ports, h *taskrunner.Hook[lease]) {
			first := h.Prestart
			h.Prestart = pre(func(ctx context.Context, r *taskrunner.Request, l *lease) (taskrunner.Contribution, error) {
				r.Go("release", func(ctx context.Context) { <-ctx.Done(); p.give(r.Alloc.ID + "/" + r.Task.Name) })
				return first(ctx, r, l)
			})
		}, "when the agent had let go"},
		"fails when it is restored": {func(_ *ports, h *taskrunner.Hook[lease]) {
			first := h.Prestart
			h.Prestart = pre(func(ctx context.Context, r *taskrunner.Request, l *lease) (taskrunner.Contribution, error) {
				if r.Restored {
					return taskrunner.Contribution{}, fmt.Errorf("exists")
				}
				return first(ctx, r, l)
			})
		}, "Hook port failed in prestart: exists"},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var faults []string
			run(t, config(tc.edit), func(_ *testing.T, format string, args ...any) {
				mu.Lock()
				defer mu.Unlock()
				faults = append(faults, fmt.Sprintf(format, args...))
			})
			require.Contains(t, strings.Join(faults, "\n"), tc.want)
		})
	}
}
