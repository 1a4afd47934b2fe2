// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// mode measures one way of holding tasks.
func (b *bench) mode(mode string) error {
	scope, exe := "alloc", ""
	switch mode {
	case "alloc":
	case "small":
		exe = b.opt.exe
	case "node":
		scope = "node"
	case "exec":
		return b.isolated(mode, "")
	case "exec-small":
		return b.isolated(mode, b.opt.exe)
	default:
		return fmt.Errorf("unknown mode %q (alloc, small, node, exec, exec-small)", mode)
	}
	for _, step := range []func(name, scope, exe string) error{b.bursts, b.life, b.logs} {
		if err := step(mode, scope, exe); err != nil {
			return err
		}
	}
	return nil
}

// startLimit is how fast the program behind a start can be started and ended.
func (b *bench) startLimit(scope, exe string) (rate float64, err error) {
	bin := exe
	if bin == "" {
		if bin, err = os.Executable(); err != nil {
			return 0, err
		}
	}
	if scope == "node" {
		bin = "/bin/true"
	}
	// The supervisor's entry leaves at once when its arguments make no sense.
	return execRate(2, 400, bin, []string{bin, "-h"}, nil), nil
}

// bursts measures starts, stops and churn, each round with fresh directories.
func (b *bench) bursts(mode, scope, exe string) error {
	n := b.opt.n
	var starts, cpus, commits, stops, churns, limits []float64
	for range b.opt.rounds {
		limit, err := b.startLimit(scope, exe)
		if err != nil {
			return err
		}
		limits = append(limits, limit)
		err = b.with(scope, exe, func(a *agent, _, _ string) error {
			c0, err := a.number("commits")
			if err != nil {
				return err
			}
			cpu0 := b.cpu.now()
			took, err := a.number(fmt.Sprint("run ", n))
			if err != nil {
				return err
			}
			cpus = append(cpus, float64(b.cpu.now()-cpu0)/1e6/float64(n))
			starts = append(starts, float64(n)/took*1000)
			if took, err = a.number("stop"); err != nil {
				return err
			}
			stops = append(stops, took)
			c1, err := a.number("commits")
			if err != nil {
				return err
			}
			commits = append(commits, (c1-c0)/float64(n))
			if took, err = a.number(fmt.Sprint("churn ", 3*n)); err != nil {
				return err
			}
			churns = append(churns, float64(3*n)/took*1000)
			_, err = a.number("stop")
			return err
		})
		if err != nil {
			return err
		}
	}
	limit := median(limits)
	b.add(mode+": starts", "1/s", n, limit, starts...)
	b.add(mode+": CPU per start", "ms", n, 0, cpus...)
	b.add(mode+": stop of all", "ms", n, 0, stops...)
	b.add(mode+": commits per life in a burst", "", n, 0, commits...)
	b.add(mode+": churn of /bin/true", "1/s", 3*n, limit, churns...)
	return nil
}

// with runs fn on a fresh agent and leaves nothing.
func (b *bench) with(scope, exe string, fn func(a *agent, data, run string) error) error {
	data, run, clean, err := b.dirs()
	if err != nil {
		return err
	}
	defer clean()
	a, _, err := b.start(scope, exe, data, run)
	if err != nil {
		return err
	}
	if err := fn(a, data, run); err != nil {
		a.kill()
		return err
	}
	a.close()
	return nil
}

// life measures one population at rest and over a crash of the agent.
func (b *bench) life(mode, scope, exe string) error {
	n := b.opt.n
	return b.with(scope, exe, func(a *agent, data, run string) error {
		b.add(mode+": agent's own memory, no allocs", "MB", 0, 0, float64(smaps("Anonymous", a.cmd.Process.Pid))/1e6)
		c0, err := a.number("commits")
		if err != nil {
			return err
		}
		if _, err := a.number("churn 1"); err != nil {
			return err
		}
		c1, err := a.number("commits")
		if err != nil {
			return err
		}
		b.add(mode+": commits per life, alone", "", 1, 0, c1-c0)
		if _, err := a.number(fmt.Sprint("run ", n)); err != nil {
			return err
		}
		sup := supervisors(run)
		b.add(mode+": helper processes per alloc", "", n, 0, float64(len(sup))/float64(n))
		b.add(mode+": helpers' memory per alloc (PSS)", "MB", n, 0, float64(smaps("Pss", sup...))/1e6/float64(n))
		b.add(mode+": agent's own memory", "MB", n, 0, float64(smaps("Anonymous", a.cmd.Process.Pid))/1e6)
		b.quiet(mode, append(sup, a.cmd.Process.Pid))

		again, restores := a, []float64(nil)
		for range b.opt.rounds {
			again.kill()
			start := time.Now()
			var running int
			if again, running, err = b.start(scope, exe, data, run); err != nil {
				return err
			}
			restores = append(restores, time.Since(start).Seconds()*1000)
			if running != n {
				return fmt.Errorf("%d of %d tasks found again", running, n)
			}
		}
		defer again.close()
		b.add(mode+": kill -9 to all reattached", "ms", n, 0, restores...)
		line, err := again.ask("latency")
		if err != nil {
			return err
		}
		var us []float64
		for f := range strings.FieldsSeq(line) {
			v, _ := strconv.ParseFloat(f, 64)
			us = append(us, v/1000)
		}
		b.add(mode+": exit to status, p50", "ms", len(us), 0, us...)
		_, err = again.number("stop")
		return err
	})
}

// quiet watches processes that have nothing to do.
func (b *bench) quiet(mode string, pids []int) {
	time.Sleep(b.opt.idle / 2)
	s0, t0 := activity(pids...)
	w0 := written(pids...)
	time.Sleep(b.opt.idle)
	s1, t1 := activity(pids...)
	b.add(mode+": idle context switches", fmt.Sprint("in ", b.opt.idle), len(pids), 0, float64(s1-s0))
	b.add(mode+": idle CPU", "ms/s", len(pids), 0, float64(t1-t0)/1e6/b.opt.idle.Seconds())
	b.add(mode+": idle disk writes", "bytes", len(pids), 0, float64(written(pids...)-w0))
}

// logs measures what one task can write, against a bare copy in the same run.
func (b *bench) logs(mode, scope, exe string) error {
	for _, w := range []struct {
		size  int
		total int64
	}{{4096, 1 << 30}, {128, 128 << 20}} {
		var rates, bare []float64
		err := b.with(scope, exe, func(a *agent, data, _ string) error {
			for range b.opt.rounds {
				limit, err := bareCopy(data, w.size, w.total)
				if err != nil {
					return err
				}
				bare = append(bare, limit/1e6)
				took, err := a.number(fmt.Sprintf("log %d %d", w.size, w.total))
				if err != nil {
					return err
				}
				rates = append(rates, float64(w.total)/1e6/took*1000)
			}
			_, err := a.number("stop")
			return err
		})
		if err != nil {
			return err
		}
		b.add(fmt.Sprintf("%s: log of one task, %d B writes", mode, w.size), "MB/s", 1, median(bare), rates...)
	}
	return nil
}
