// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package outbox

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nodekeep/nodekeep/state"
)

// A token is a place in the log as it is now. If the state is put back from a copy
// the same numbers come again and stand for other events. A cursor is a token and the
// run of the agent that wrote its event, "17@5f3a9c01d2e4b687": for readers that
// outlive the agent.
//
//	v1/outbox   run: the latest run that wrote events; runs: the first token of each
//
//	runs        5f3a 1 ‥ 16    91c0 17 ‥ 40    now 41 ‥
//	cursors     16@5f3a good   17@5f3a put back   40@91c0 good   9@0000 put back

// ErrPutBack says that a cursor is of a history that is no more: the state was put
// back from a copy. It is state.ErrCompacted too: go on from Snapshot.
var ErrPutBack = errors.New("outbox: the state was put back from a copy of before this event")

// ErrCursor says that a text is no cursor.
var ErrCursor = errors.New("outbox: no cursor: it is a token, or a token and a run as in 17@5f3a9c01d2e4b687")

// maxRuns is how many runs are known; a cursor of an older one is refused.
const maxRuns = 64

// run is what one life of the agent wrote: up to the next one's first.
type run struct {
	ID    string `json:"id"`
	First uint64 `json:"first"`
}

func runsSlot() state.Slot[[]run] { return state.Slot[[]run]{Key: "runs", Version: 1} }

const runKey = "run"

// noteRun notes that the next event is this run's, if it is its first.
func (b *Box) noteRun(tx state.Tx) error {
	if string(tx.Get(b.cfg.Path, runKey)) == b.epoch {
		return nil
	}
	first, last, err := b.cfg.Events.Bounds(tx)
	if err != nil {
		return err
	}
	all, err := b.runs(tx)
	if err != nil {
		return err
	}
	all = append(all, run{b.epoch, last + 1})
	gone := max(0, len(all)-maxRuns)
	for gone+1 < len(all) && all[gone+1].First < first { // nothing of it is kept
		gone++
	}
	return errors.Join(tx.Put(b.cfg.Path, runKey, []byte(b.epoch)), runsSlot().Save(tx, b.cfg.Path, all[gone:]))
}

// runs are those known, the oldest first. A damaged list is none.
func (b *Box) runs(tx state.Tx) ([]run, error) {
	all, _, err := runsSlot().Load(tx, b.cfg.Path)
	if errors.Is(err, state.ErrCorrupt) {
		return nil, nil
	}
	return all, err
}

// cursor is the token's. One that no run is known for stands alone.
func cursor(all []run, token uint64) string {
	i, found := slices.BinarySearchFunc(all, token, func(r run, t uint64) int {
		switch {
		case r.First < t:
			return -1
		case r.First > t:
			return 1
		}
		return 0
	})
	if !found {
		i--
	}
	if i < 0 || token == 0 {
		return strconv.FormatUint(token, 10)
	}
	return strconv.FormatUint(token, 10) + "@" + all[i].ID
}

// Cursor returns the cursor of a token of now, such as Snapshot's.
func (b *Box) Cursor(token uint64) (c string, err error) {
	err = b.cfg.Store.View(func(tx state.Tx) error {
		all, err := b.runs(tx)
		c = cursor(all, token)
		return err
	})
	return c, err
}

// Resolve returns the token of a cursor, for Read. A bare token is taken as it is.
// Errors: ErrCursor; state.ErrCompacted if events after it are no longer kept,
// ErrPutBack among those if they are not its history's.
func (b *Box) Resolve(cursor string) (token uint64, err error) {
	text, id, whole := strings.Cut(cursor, "@")
	token, err = strconv.ParseUint(text, 10, 64)
	if err != nil || whole && id == "" {
		return 0, fmt.Errorf("%w: %q", ErrCursor, cursor)
	}
	if !whole {
		return token, nil
	}
	return token, b.cfg.Store.View(func(tx state.Tx) error {
		first, last, err := b.cfg.Events.Bounds(tx)
		if err != nil {
			return err
		}
		if token+1 < first {
			return fmt.Errorf("%w: %d to %d are kept, asked for were those after %d", state.ErrCompacted, first, last, token)
		}
		all, err := b.runs(tx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(r run) bool { return r.ID == id })
		if i >= 0 && i+1 < len(all) {
			last = all[i+1].First - 1
		}
		if i < 0 || token < all[i].First || token > last {
			return fmt.Errorf("%w (%s): %w", ErrPutBack, cursor, state.ErrCompacted)
		}
		return nil
	})
}
