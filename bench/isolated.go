// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/driver"
)

// execBars are those of isolated tasks, by modes: exec, exec-small.
var execBars = map[string][2]bar{
	"starts":                {{50, true, true}, {75, true, true}},
	"CPU per start":         {{32, false, true}, {21, false, true}},
	"lone start, p50":       {{30, false, true}, {22, false, true}},
	"exec into a task, p50": {{22, false, true}, {12, false, true}},
}

// isolated measures tasks of the driver exec.
func (b *bench) isolated(mode, exe string) error {
	if isolatedDrivers("") == nil {
		return fmt.Errorf("this program was built without the driver exec: go run -tags isolated ./bench -modes %s", mode)
	}
	b.opt.driver = "exec"
	defer func() { b.opt.driver = "raw_exec" }()
	n := b.opt.n
	var starts, cpus, stops, limits, lone, beside []float64
	for range b.opt.rounds {
		limit, err := b.startLimit("alloc", exe)
		if err != nil {
			return err
		}
		limits = append(limits, limit)
		err = b.with("alloc", exe, func(a *agent, _, _ string) error {
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
			for _, cmd := range []struct {
				text string
				to   *[]float64
			}{{"lone 20", &lone}, {"beside 20", &beside}} {
				line, err := a.ask(cmd.text)
				if err != nil {
					return err
				}
				for f := range strings.FieldsSeq(line) {
					v, _ := strconv.ParseFloat(f, 64)
					*cmd.to = append(*cmd.to, v/1000)
				}
			}
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
	b.add(mode+": lone start, p50", "ms", len(lone), 0, lone...)
	b.add(mode+": exec into a task, p50", "ms", len(beside), 0, beside...)
	b.add(mode+": stop of all", "ms", n, 0, stops...)
	return nil
}

// lone starts allocs with a pause between them, in which what the kernel keeps warm
// for a while gets cold.
func (n *node) lone(ctx context.Context, count int) (string, error) {
	var us []string
	for range count {
		time.Sleep(100 * time.Millisecond)
		took, err := n.timed(ctx, 1, "running", n.task("/bin/sleep", "1000000"))
		if err != nil {
			return "", err
		}
		v, _ := strconv.ParseFloat(took, 64)
		us = append(us, strconv.FormatInt(int64(v*1000), 10))
	}
	return strings.Join(us, " "), nil
}

// beside runs commands in the first task that runs.
func (n *node) beside(ctx context.Context, count int) (string, error) {
	var us []string
	for _, st := range n.agent.Allocs() {
		if st.Status != "running" {
			continue
		}
		for range count {
			start := time.Now()
			if _, err := n.agent.Exec(ctx, nodekeep.ExecCall{AllocID: st.Alloc.ID, Task: "t"}, driver.ExecRequest{Command: []string{"/bin/true"}}); err != nil {
				return "", err
			}
			us = append(us, strconv.FormatInt(time.Since(start).Microseconds(), 10))
		}
		break
	}
	return strings.Join(us, " "), nil
}
