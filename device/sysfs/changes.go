// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// settle is how long news are gathered before anybody looks: what is plugged in
// tells of itself in many parts.
const settle = 200 * time.Millisecond

// change is something that became different. Without a path nobody knows what.
type change struct {
	path      string // of the device, below Config.Sys
	subsystem string
	node      string // below Config.Dev
}

// watch tells of changes until ctx ends, and then closes its channel: those that
// the kernel tells of, so that nothing wakes anybody as long as nothing happens;
// where it tells us nothing, one of an unknown kind each period. It listens before
// it returns, and must be read: what is told meanwhile waits in the kernel.
func watch(ctx context.Context, cfg *Config, listen func(*Config) (source, error)) <-chan change {
	out := make(chan change)
	news, err := listen(cfg)
	if err != nil {
		cfg.Log.Info("the kernel does not tell of changes here: they are looked for", "period", cfg.Period, "reason", err)
	}
	go func() {
		defer close(out)
		if err == nil {
			if err = tell(ctx, news, out); ctx.Err() == nil {
				cfg.Log.Warn("the kernel tells of no more changes: they are looked for", "period", cfg.Period, "reason", err)
			}
		}
		t := time.NewTicker(cfg.Period)
		defer t.Stop()
		for {
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
			select {
			case out <- change{}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// source is the kernel's news. next blocks until there is some, or Close is called.
type source interface {
	next() (change, error)
	Close() error
}

// tell hands on what the source says until ctx ends or the source fails.
func tell(ctx context.Context, from source, out chan<- change) error {
	closed := context.AfterFunc(ctx, func() { _ = from.Close() })
	for {
		c, err := from.next()
		if err != nil {
			if closed() {
				_ = from.Close()
			}
			return err
		}
		select {
		case out <- c:
		case <-ctx.Done():
		}
	}
}

// parse reads a message of the kernel: a line, then variables, each ended by NUL.
// What it does not understand may be anything.
func parse(msg []byte) (c change) {
	fields := bytes.Split(msg, []byte{0})
	for _, f := range fields[1:] {
		name, value, _ := strings.Cut(string(f), "=")
		switch name {
		case "DEVPATH":
			c.path = value
		case "SUBSYSTEM":
			c.subsystem = value
		case "DEVNAME":
			c.node = value
		}
	}
	return c
}

// touches says whether a change can be one of what fits the rules: of a device of
// their subsystems, of a part of one that was found or of what it is a part of, or
// of a node that they name.
func (c change) touches(cfg *Config, found []*thing) bool {
	if c.path == "" {
		return true
	}
	dir, node := filepath.Join(cfg.Sys, c.path), filepath.Join(cfg.Dev, c.node)
	return slices.ContainsFunc(cfg.Match, func(m Match) bool {
		return m.Subsystem == c.subsystem || c.node != "" && slices.Contains(m.Nodes, node)
	}) || slices.ContainsFunc(found, func(f *thing) bool {
		return below(f.dir, dir) || below(dir, f.dir)
	})
}

func below(dir, top string) bool { return dir == top || strings.HasPrefix(dir, top+"/") }

// wait blocks until something has changed that matters, and a moment longer, or
// until again. It says whether ctx still goes on.
func wait(ctx context.Context, news <-chan change, again <-chan time.Time, matters func(change) bool) bool {
	var settled <-chan time.Time
	for {
		select {
		case c := <-news: // when it is closed, ctx has ended
			if settled == nil && matters(c) {
				settled = time.After(settle)
			}
		case <-settled:
			return true
		case <-again:
			return true
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return false
		}
	}
}
