// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/spec"
)

// locked is a log that goroutines may write to.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// An edited alloc under the index that it had changes nothing, and that is told:
// once, naming what changed, also after a restart; never of equal content.
func TestOtherContentUnderTheSameIndexIsTold(t *testing.T) {
	f := fake()
	cfg := config(t, f)
	log := &locked{}
	cfg.Log = hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: log})
	told := func() int { return strings.Count(log.String(), "its ModifyIndex has not") }
	n := start(t, cfg)
	n.apply(1, alloc("a", 1, spec.JobService), alloc("b", 1, spec.JobService))
	n.status("a", allocrunner.Running)
	n.apply(2, alloc("a", 1, spec.JobService), alloc("b", 1, spec.JobService))
	n = n.again()
	n.apply(3, alloc("a", 1, spec.JobService), alloc("b", 1, spec.JobService))
	require.Zero(t, told(), log.String())

	edited := alloc("a", 1, spec.JobService)
	edited.Tasks[0].KillTimeout, edited.CreateTime = time.Minute, time.Now()
	for range 3 {
		n.apply(4, edited, alloc("b", 1, spec.JobService))
	}
	require.Equal(t, 1, told(), log.String())
	require.Contains(t, log.String(), "alloc_id=a modify_index=1 changed=tasks[t].kill_timeout")
	s, _ := n.Alloc("a")
	require.Equal(t, time.Second, s.Alloc.Tasks[0].KillTimeout)

	edited.ModifyIndex = 5
	n.apply(5, edited, alloc("b", 1, spec.JobService))
	n.until("a", "updated", func(s AllocStatus, _ bool) bool { return s.Alloc.Tasks[0].KillTimeout == time.Minute })
	require.Equal(t, 1, told())
}
