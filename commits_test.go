// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/rawexec"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/supervisor"
)

// D23: what a life alone costs in transactions: at most eight, and one for each hook
// callback that changed its state. Here that is the logs hook's first. That secrets
// are dropped costs none; that the alloc's own supervisor leaves costs one.
func TestCommitsOfALife(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("supervisors need Linux")
	}
	for mode, most := range map[ScopeMode]int64{ScopeNode: 8, ScopeTask: 8, ScopeAlloc: 9} {
		t.Run(string(mode), func(t *testing.T) {
			cfg := config(t, fake())
			cfg.Scope = mode
			cfg.Drivers = []DriverFunc{func(p *supervisor.Pool) (driver.Driver, error) { return rawexec.New(rawexec.Config{Enabled: true})(p) }}
			n := start(t, cfg)
			n.apply(1)
			before := n.Commits()
			al := alloc("a", 1, spec.JobBatch)
			al.Tasks[0].Driver, al.Tasks[0].Config = "raw_exec", []byte(`{"command": "/bin/true"}`)
			n.apply(2, al)
			require.Equal(t, allocrunner.Complete, n.over("a").Status)
			cost := n.Commits() - before
			t.Logf("%d commits", cost)
			require.LessOrEqual(t, cost, most)
			n.apply(3)
			n.absent("a")
		})
	}
}
