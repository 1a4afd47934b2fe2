// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"errors"
	"fmt"
	"time"

	"github.com/nodekeep/nodekeep/spec"
)

// ErrStale says that a desired list is older than the last one applied. Nothing
// of it was applied; fetch the full list again.
var ErrStale = errors.New("nodekeep: desired list is stale")

// progress is how far the agent has followed its control plane. Persisted.
type progress struct {
	Epoch string `json:"epoch,omitempty"`
	Index uint64 `json:"index"`
	Token string `json:"token,omitempty"`
	// Settled is when removals of a new epoch may be carried out; zero in an
	// epoch that has settled.
	Settled time.Time `json:"settled,omitzero"`
	// Contacted is set by the first list ever applied.
	Contacted bool `json:"contacted,omitempty"`
}

// actions is what a desired list means for the allocs the agent knows.
type actions struct {
	create []*spec.Alloc
	update []*spec.Alloc
	remove []string // stop and collect
	forget []string // tombstones that left the list
}

// known is what reconcile has to know of one alloc.
type known struct {
	modify uint64
	gone   bool // collected; a tombstone keeps it from running again
}

// reconcile compares a list with what is known. Rules:
//   - a lower index is stale and changes nothing; an equal or higher one counts in full;
//   - an alloc is updated only if its modify index grew;
//   - an alloc missing from the list is removed only if the list is newer than
//     the alloc's own last change;
//   - another epoch is accepted only from a full fetch, starts its own index,
//     and its removals wait for a later full list, one ttl on.
func reconcile(p progress, d Desired, have map[string]known, now time.Time, ttl time.Duration) (progress, actions, error) {
	var act actions
	removals := true
	switch {
	case p.Contacted && d.Epoch != p.Epoch:
		if !d.Full {
			return p, act, fmt.Errorf("%w: epoch %q after %q is accepted from a full fetch only", ErrStale, d.Epoch, p.Epoch)
		}
		p.Settled, removals = now.Add(ttl), false
	case p.Contacted && d.Index < p.Index:
		return p, act, fmt.Errorf("%w: index %d after %d", ErrStale, d.Index, p.Index)
	case !p.Settled.IsZero():
		if removals = d.Full && !now.Before(p.Settled); removals {
			p.Settled = time.Time{}
		}
	}
	p.Epoch, p.Index, p.Token, p.Contacted = d.Epoch, d.Index, d.Token, true

	listed := make(map[string]bool, len(d.Allocs))
	for _, al := range d.Allocs {
		listed[al.ID] = true
		k, ok := have[al.ID]
		switch {
		case !ok:
			act.create = append(act.create, al)
		case !k.gone && al.ModifyIndex > k.modify:
			act.update = append(act.update, al)
		}
	}
	for id, k := range have {
		switch {
		case listed[id] || !removals:
		case k.gone:
			act.forget = append(act.forget, id)
		case d.Index > k.modify:
			act.remove = append(act.remove, id)
		}
	}
	return p, act, nil
}
