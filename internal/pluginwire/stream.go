// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package pluginwire

import (
	"context"
	"time"
)

const (
	// pace is the least time between two messages of a stream that we read: a
	// plugin that sends without end is held up by its own transport.
	pace = 20 * time.Millisecond
	// burst messages may come without it.
	burst = 100
)

// Limiter slows a reader of a stream down that was given more than anyone can use.
// It has one user.
type Limiter struct {
	left int
	at   time.Time
}

// Wait returns at once while there is credit, which grows by one each 20 ms up to
// 100; else it takes that long, or until ctx ends.
func (l *Limiter) Wait(ctx context.Context) {
	now := time.Now()
	if l.at.IsZero() {
		l.left = burst
	} else {
		l.left = min(burst, l.left+int(now.Sub(l.at)/pace))
	}
	if l.left > 0 {
		l.left--
		l.at = now
		return
	}
	Pause(ctx, pace)
	l.at = time.Now()
}

// Pause waits for d or the end of ctx.
func Pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Latest gives a reader the newest value there is. It has room for one and one
// writer.
type Latest[T any] chan T

// Put never blocks.
func (l Latest[T]) Put(v T) {
	for {
		select {
		case l <- v:
			return
		default:
		}
		select {
		case <-l: // nobody took it
		default:
		}
	}
}
