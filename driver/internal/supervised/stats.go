// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervised

import (
	"context"
	"sync"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/usage"
)

const (
	usualInterval = time.Second
	leastInterval = 100 * time.Millisecond
)

// Stats implements driver.Meter. Intervals below 100 ms are that. Without a
// cgroup every sample goes through all processes of the machine.
func (t *Tasks) Stats(ctx context.Context, id string, interval time.Duration) (<-chan driver.Usage, error) {
	r, err := t.Task(id)
	if err != nil {
		return nil, err
	}
	if interval <= 0 {
		interval = usualInterval
	}
	sc := t.pool.Scope(r.Scope)
	m := usage.New(r.Cgroup, func() []int { return sc.Procs(id) })
	ch := make(chan driver.Usage, 1)
	go func() {
		defer close(ch)
		ctx, cancel := context.WithCancel(ctx)
		var end sync.WaitGroup
		defer end.Wait()
		defer cancel()
		end.Go(func() {
			_, _ = sc.Wait(ctx, id) // whatever it is, the samples end
			cancel()
		})
		sample(ctx, m, max(interval, leastInterval), ch)
	}()
	return ch, nil
}

// sample measures until ctx ends or nothing is left to measure.
func sample(ctx context.Context, m *usage.Meter, interval time.Duration, ch chan driver.Usage) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		u, ok := m.Sample(time.Now())
		if !ok || ctx.Err() != nil {
			return
		}
		select {
		case <-ch: // nobody has taken the last one
		default:
		}
		ch <- u
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
