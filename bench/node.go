// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/driver/rawexec"
	"github.com/nodekeep/nodekeep/spec"
)

// node is the agent under measurement: a process of its own that takes a
// command a line on stdin and answers each with a line on stdout.
//
//	run N         start N allocs of sleep; answers "ms" until all run on disk
//	churn N       run N allocs of /bin/true to completion; answers "ms"
//	log SIZE N    one task writes N bytes in writes of SIZE; answers "ms"
//	latency N     kill N tasks one by one; answers "us" from kill to status
//	lone N        start N allocs one after the other; answers "us" of each
//	beside N      run N commands beside the first task; answers "us" of each
//	stop          stop all; answers "ms" until all are complete
//	commits       answers how many transactions reached the disk
type node struct {
	agent *nodekeep.Agent
	drv   string // of the tasks
	index uint64
	set   map[string]*spec.Alloc
	round int
}

func runNode(opt options) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	agent, err := nodekeep.New(nodekeep.Config{
		DataDir: opt.data, RuntimeDir: opt.runtime, Scope: nodekeep.ScopeMode(opt.scope), SupervisorExe: opt.exe,
		MaxFinished: 1 << 20, CgroupSlice: "nodekeep-bench.slice",
		Drivers: append(isolatedDrivers(opt.creator), rawexec.New(rawexec.Config{Enabled: true})),
		Log:     hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: os.Stderr}),
	})
	if err != nil {
		return err
	}
	n := &node{agent: agent, drv: opt.driver, set: map[string]*spec.Alloc{}}
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	<-agent.Ready()
	running := 0
	for _, st := range agent.Allocs() {
		n.set[st.Alloc.ID] = st.Alloc
		n.index = max(n.index, st.Alloc.ModifyIndex)
		if st.Status == "running" {
			running++
		}
	}
	fmt.Println("ready", running)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		ans, err := n.do(ctx, strings.Fields(in.Text()))
		if err != nil {
			return err
		}
		fmt.Println(ans)
	}
	cancel()
	return <-ended
}

func (n *node) do(ctx context.Context, cmd []string) (string, error) {
	arg := func(i int) int { v, _ := strconv.Atoi(cmd[i]); return v }
	switch cmd[0] {
	case "run":
		return n.timed(ctx, arg(1), "running", n.task("/bin/sleep", "1000000"))
	case "churn":
		return n.timed(ctx, arg(1), "complete", n.task("/bin/true"))
	case "log":
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		return n.timed(ctx, 1, "complete", n.task(self, writerArgs(arg(1), int64(arg(2)))...))
	case "lone":
		return n.lone(ctx, arg(1))
	case "beside":
		return n.beside(ctx, arg(1))
	case "latency":
		return n.latency(ctx)
	case "stop":
		return n.stop(ctx)
	case "commits":
		return strconv.FormatInt(n.agent.Commits(), 10), nil
	}
	return "", fmt.Errorf("bench: unknown command %q", cmd)
}

func (n *node) task(command string, args ...string) spec.Task {
	cfg, _ := json.Marshal(map[string]any{"command": command, "args": args})
	signal := ""
	if n.drv == "exec" { // as PID 1 it is deaf to any other
		signal = "SIGKILL"
	}
	return spec.Task{Name: "t", Driver: n.drv, Config: cfg, KillTimeout: 5 * time.Second, KillSignal: signal,
		Restart: &spec.RestartPolicy{Mode: spec.RestartFail},
		Logs:    &spec.LogConfig{MaxFiles: 2, MaxSize: 64 << 20}}
}

func (n *node) apply(ctx context.Context) error {
	d := nodekeep.Desired{Index: n.index, Full: true}
	for _, al := range n.set {
		d.Allocs = append(d.Allocs, al)
	}
	return n.agent.Apply(ctx, d)
}

// timed applies count more allocs and waits until they have the status.
func (n *node) timed(ctx context.Context, count int, status string, t spec.Task) (string, error) {
	n.round++
	n.index++
	ids := map[string]bool{}
	for i := range count {
		al := &spec.Alloc{ID: fmt.Sprintf("b%d-%05d-%d", n.round, i, time.Now().UnixNano()), JobID: "bench", JobType: spec.JobBatch, Group: "g",
			Index: i, CreateIndex: n.index, ModifyIndex: n.index, CreateTime: time.Now(), Tasks: []spec.Task{t}}
		n.set[al.ID] = al
		ids[al.ID] = true
	}
	start := time.Now()
	if err := n.apply(ctx); err != nil {
		return "", err
	}
	err := n.until(ids, status)
	return ms(time.Since(start)), err
}

// until waits for all of ids to reach the status. It looks at most every 2 ms.
func (n *node) until(ids map[string]bool, status string) error {
	deadline := time.Now().Add(5 * time.Minute)
	for {
		changed := n.agent.Changed()
		missing := len(ids)
		for _, st := range n.agent.Allocs() {
			switch {
			case !ids[st.Alloc.ID]:
			case string(st.Status) == status && st.Durable:
				missing--
			case st.Status == "failed":
				t := st.Tasks["t"]
				return fmt.Errorf("bench: %s failed: %s: %s, exit %+v", st.Alloc.ID, st.Description, t.Reason, t.Exit)
			}
		}
		if missing == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-time.After(time.Until(deadline)):
			return fmt.Errorf("bench: %d of %d allocs are not %s after 5 minutes", missing, len(ids), status)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// stop wants all allocs stopped, waits, and drops them from the desired set.
func (n *node) stop(ctx context.Context) (string, error) {
	n.index++
	ids := map[string]bool{}
	for _, st := range n.agent.Allocs() {
		if st.Status == "running" {
			ids[st.Alloc.ID] = true
		}
	}
	for id, al := range n.set {
		c := *al
		c.DesiredStatus, c.ModifyIndex = spec.DesiredStop, n.index
		n.set[id] = &c
	}
	start := time.Now()
	if err := n.apply(ctx); err != nil {
		return "", err
	}
	err := n.until(ids, "complete")
	took := ms(time.Since(start))
	if err != nil {
		return "", err
	}
	n.index++
	n.set = map[string]*spec.Alloc{}
	if err := n.apply(ctx); err != nil {
		return "", err
	}
	for len(n.agent.Allocs()) > 0 { // all collected
		changed := n.agent.Changed()
		if len(n.agent.Allocs()) == 0 {
			break
		}
		<-changed
	}
	return took, nil
}

// latency kills each running task and measures until its alloc's status says so.
func (n *node) latency(_ context.Context) (string, error) {
	var us []string
	for _, st := range n.agent.Allocs() {
		h := st.Tasks["t"].Handle
		if h == nil || h.PID <= 1 || st.Status != "running" {
			continue
		}
		pid := h.PID
		start := time.Now()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return "", err
		}
		for {
			changed := n.agent.Changed()
			if now, _ := n.agent.Alloc(st.Alloc.ID); now.Status == "failed" {
				break
			}
			<-changed
		}
		us = append(us, strconv.FormatInt(time.Since(start).Microseconds(), 10))
	}
	return strings.Join(us, " "), nil
}

func ms(d time.Duration) string { return strconv.FormatFloat(d.Seconds()*1000, 'f', 3, 64) }
