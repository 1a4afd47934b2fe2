// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"

	"github.com/nodekeep/nodekeep/explain"
)

// Explain says what an alloc and its tasks wait for, what failed last and what
// will happen next: what their runners decide by, asked of them. It answers within
// two seconds, also when the disk hangs, and tells that then.
func (a *Agent) Explain(ctx context.Context, id string) (explain.AllocReasons, error) {
	e, err := a.entry(id)
	if err == nil && e.runner != nil {
		return e.runner.Explain(ctx), nil
	}
	s, ok := a.Alloc(id)
	if !ok {
		return explain.AllocReasons{}, err
	}
	s.Snapshot.Alloc = s.Alloc
	out := s.Snapshot.Explain()
	why := s.Description
	if s.Gone {
		why = "it was collected; only its last status is left: " + why
	}
	out.Next = []explain.Reason{explain.Of(explain.Nothing, "", "reason", why)}
	return out, nil
}
