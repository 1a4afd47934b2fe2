// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/rawexec"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/supervisor"
)

// used is what a process has.
type used struct {
	goroutines, files int
	heap              int64
}

func use(t *testing.T) used {
	t.Helper()
	runtime.GC()
	runtime.GC() // finalizers, and what they let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return used{runtime.NumGoroutine(), len(files), int64(m.HeapAlloc)} //nolint:gosec // far from its end
}

// An agent with real tasks: four goroutines for each that runs at most, and after 200
// batch tasks, collected, it has what it had before, in goroutines, descriptors and heap.
func TestBackToTheBaseline(t *testing.T) {
	cfg := config(t, fake())
	cfg.Scope = ScopeNode // one supervisor: the time goes to what is measured
	cfg.Drivers = []DriverFunc{func(p *supervisor.Pool) (driver.Driver, error) { return rawexec.New(rawexec.Config{Enabled: true})(p) }}
	n := start(t, cfg)
	index := uint64(0)
	apply := func(allocs ...*spec.Alloc) {
		index++
		n.apply(index, allocs...)
	}
	batch := func(count int) (all []*spec.Alloc) {
		for i := range count {
			al := alloc(fmt.Sprintf("b%d-%d", index, i), index+1, spec.JobBatch)
			al.Tasks[0].Driver, al.Tasks[0].Config = "raw_exec", []byte(`{"command": "/bin/true"}`)
			all = append(all, al)
		}
		return all
	}
	run := func(count int) {
		all := batch(count)
		apply(all...)
		for _, al := range all {
			require.Equal(t, allocrunner.Complete, n.over(al.ID).Status)
		}
		apply()
		for _, al := range all {
			n.absent(al.ID)
		}
	}
	keep := alloc("keep", 1, spec.JobService) // the supervisor stays, and what belongs to it
	keep.Tasks[0].Driver, keep.Tasks[0].Config = "raw_exec", []byte(`{"command": "sleep", "args": ["1000"]}`)
	wrapped := apply
	apply = func(allocs ...*spec.Alloc) { wrapped(append(allocs, keep)...) }
	run(20)
	before := use(t)

	const running = 20
	var services []*spec.Alloc
	for i := range running {
		al := keep.Clone()
		al.ID = fmt.Sprintf("s%d", i)
		services = append(services, al)
	}
	apply(services...)
	for _, al := range services {
		n.status(al.ID, allocrunner.Running)
	}
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before.goroutines+4*running }, 10*time.Second, 10*time.Millisecond,
		"at most four for each task")
	apply()
	for _, al := range services {
		n.absent(al.ID)
	}
	run(200)
	now := use(t)
	for end := time.After(10 * time.Second); now.goroutines > before.goroutines || now.files > before.files || now.heap > before.heap+1<<20; now = use(t) {
		select {
		case <-n.Changed():
		case <-time.After(50 * time.Millisecond):
		case <-end:
			t.Errorf("before %+v, now %+v", before, now)
			before = now
		}
	}
	t.Logf("before %+v, now %+v", before, now)
	wrapped()
	n.absent("keep")
}
