// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner_test

import (
	"fmt"
	"testing"

	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// BenchmarkLife is what the runner itself costs in the life of a batch task with
// six hooks: driver and disk are memory.
func BenchmarkLife(b *testing.B) {
	store, clock := state.Memory(), bootclock.System()
	j := &journal{}
	var hooks []taskrunner.HookFunc
	for i := range 6 {
		hooks = append(hooks, j.hook(fmt.Sprint("hook", i)))
	}
	fake := &drivertest.Fake{Script: script(exits(0, 0))}
	b.ReportAllocs()
	for i := range b.N {
		a := alloc(spec.JobBatch)
		a.ID = fmt.Sprint("alloc-", i)
		r, err := taskrunner.New(taskrunner.Config{Alloc: a, Task: "web", Drivers: fake, Store: store, Hooks: hooks, Clock: clock})
		if err != nil {
			b.Fatal(err)
		}
		if err := r.Run(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
