// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

func TestExplain(t *testing.T) {
	f := fake()
	cfg := config(t, f)
	cfg.MaxFinished = -1
	n := start(t, cfg)
	text := func(id string) string {
		t.Helper()
		e, err := n.Explain(t.Context(), id)
		require.NoError(t, err)
		var b strings.Builder
		require.NoError(t, e.Write(&b, time.Now(), nil))
		return b.String()
	}
	_, err := n.Explain(t.Context(), "nobody")
	require.ErrorIs(t, err, ErrNoAlloc)
	bad := alloc("bad", 1, spec.JobService)
	bad.Tasks[0].Driver = "nobody"
	al := alloc("a", 1, spec.JobService)
	require.Error(t, n.Apply(t.Context(), Desired{Index: 1, Full: true, Allocs: []*spec.Alloc{al, bad}}))
	n.status("a", allocrunner.Running)
	require.Contains(t, text("a"), "task t: running\n    waits    it runs until it exits, for ")
	require.Contains(t, text("a"), "next     if it exited with 0: restarted after ")
	require.Regexp(t, `bad job.g\[0\]: failed: .*nobody`, text("bad"))

	// After a restart a lost task waits for the control plane, and says so.
	n.stop()
	f.Reboot()
	n = start(t, n.cfg)
	n.until("a", "lost", func(s AllocStatus, _ bool) bool {
		events := s.Tasks["t"].Events
		return s.Tasks["t"].Phase == taskrunner.Pending && len(events) > 0 && events[len(events)-1].Kind == taskrunner.AwaitingContact
	})
	require.Contains(t, text("a"), "waits    the control plane has not spoken")
	n.apply(2, stopped(al, 2))
	n.until("a", "collected", func(s AllocStatus, _ bool) bool { return s.Gone })
	require.Contains(t, text("a"), "next     nothing: it has ended: it was collected")
}
