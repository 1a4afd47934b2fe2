// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/outbox"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// listener is a control plane that takes what agents tell. It forgets to
// acknowledge every third time.
type listener struct {
	mu      sync.Mutex
	status  map[string]outbox.Status
	events  map[uint64]Event
	news    *bell
	batches int
	wrong   []string
}

func newListener() *listener {
	return &listener{status: map[string]outbox.Status{}, events: map[uint64]Event{}, news: newBell()}
}

// listen takes batches until the agent has ended.
func (l *listener) listen(ctx context.Context, box outbox.Outbox) {
	for {
		b, err := box.Next(ctx)
		if err != nil {
			return
		}
		if l.take(b) && box.Ack(b.Token) != nil {
			return
		}
	}
}

var statusOrder = []allocrunner.Status{allocrunner.Pending, allocrunner.Running, allocrunner.Complete}

func (l *listener) take(b outbox.Batch) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range b.Statuses {
		old, ok := l.status[s.AllocID]
		back := ok && (slices.Index(statusOrder, s.Status) < slices.Index(statusOrder, old.Status) || s.Seq < old.Seq || s.ModifyIndex < old.ModifyIndex)
		for name, task := range old.Tasks {
			back = back || s.Tasks[name].Restarts < task.Restarts
		}
		if back {
			l.wrong = append(l.wrong, "a status went back")
		}
		l.status[s.AllocID] = s
	}
	for _, e := range b.Events {
		if old, ok := l.events[e.Token]; ok && (old.AllocID != e.AllocID || old.Event.Kind != e.Event.Kind) {
			l.wrong = append(l.wrong, "an event changed")
		}
		l.events[e.Token] = e
	}
	if b.Dropped > 0 {
		l.wrong = append(l.wrong, "events were dropped")
	}
	l.batches++
	l.news.ring()
	return l.batches%3 != 0
}

// heard waits until everything of the alloc was told, and checks that it was.
func (l *listener) heard(t *testing.T, id string, newest uint64) {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		news := l.news.wait()
		l.mu.Lock()
		s, n := l.status[id], uint64(len(l.events))
		l.mu.Unlock()
		if s.Status == allocrunner.Complete && !s.FinishedAt.IsZero() && n == newest {
			break
		}
		select {
		case <-news:
		case <-timeout:
			t.Fatalf("not told: %+v, %d of %d events", s, n, newest)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Empty(t, l.wrong)
	for name, task := range l.status[id].Tasks {
		require.Equal(t, taskrunner.Dead, task.State, name)
	}
	for token := uint64(1); token <= newest; token++ {
		require.Contains(t, l.events, token)
	}
}

func TestOutboxTellsAll(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	bad := alloc("bad", 1, spec.JobService)
	bad.Tasks[0].Driver = "nobody"
	err := n.Apply(ctx, Desired{Index: 1, Full: true, Allocs: []*spec.Alloc{alloc("a", 1, spec.JobService), bad}})
	require.Error(t, err)
	told := map[string]outbox.Status{}
	until := func(ok func() bool) {
		t.Helper()
		for !ok() {
			b, err := n.Outbox().Next(ctx)
			require.NoError(t, err)
			for _, s := range b.Statuses {
				told[s.AllocID] = s
			}
			require.NoError(t, n.Outbox().Ack(b.Token))
		}
	}
	until(func() bool {
		return told["a"].Status == allocrunner.Running && told["bad"].Status == allocrunner.Failed
	})
	require.Contains(t, told["bad"].Description, "nobody")
	delete(told, "bad")
	err = n.Apply(ctx, Desired{Index: 2, Full: true, Allocs: []*spec.Alloc{alloc("a", 1, spec.JobService), bad}})
	require.Error(t, err)

	// The last status outlives the alloc and the agent.
	n.apply(3)
	n.absent("a")
	n = n.again()
	until(func() bool { return told["a"].Status == allocrunner.Complete })
	require.NotContains(t, told, "bad", "refused for the same reason: no news")
	require.Equal(t, taskrunner.Dead, told["a"].Tasks["t"].State)

	// A record that cannot be read is told, too.
	n.apply(4, alloc("q", 4, spec.JobService))
	n.status("q", allocrunner.Running)
	n = n.again(func(a *Agent) {
		require.NoError(t, a.store.Update(func(tx state.Tx) error { return tx.Put(allocsPath.Join("q"), "alloc", []byte("?")) }))
	})
	until(func() bool { return told["q"].Status == allocrunner.Failed })
	all, token, err := n.Statuses()
	require.NoError(t, err)
	require.Empty(t, all)
	_, newest, err := n.EventBounds()
	require.NoError(t, err)
	require.Equal(t, newest, token)
	box := n.Outbox()
	n.stop()
	_, err = box.Next(ctx)
	require.True(t, errors.Is(err, state.ErrClosed), "%v", err)
}
