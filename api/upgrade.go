// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"net/http"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/state"
)

// Upgrade is how the node's state file stands. Until a pending upgrade is committed
// the program of before can be put back.
type Upgrade struct {
	Pending   bool       `json:"pending"`
	From      int        `json:"from,omitempty"` // layouts
	To        int        `json:"to,omitempty"`
	Since     *time.Time `json:"since,omitempty"`
	LeftNS    int64      `json:"left_ns,omitempty"`   // of agent life, until it is committed by itself
	Committed bool       `json:"committed,omitempty"` // by this request
}

// upgrader is an agent whose state file can be of an older version's form.
type upgrader interface {
	Upgrade() (state.Upgrade, bool)
	CommitUpgrade() error
}

// upgrade answers GET /v1/upgrade.
func (s *server) upgrade(w http.ResponseWriter, _ *http.Request) error {
	up, ok := s.Agent.(upgrader)
	if !ok {
		return driver.ErrNotImplemented
	}
	return writeJSON(w, shapeUpgrade(up.Upgrade()))
}

// commitUpgrade answers POST /v1/upgrade/commit with what was committed.
func (s *server) commitUpgrade(w http.ResponseWriter, r *http.Request) error {
	up, ok := s.Agent.(upgrader)
	if !ok {
		return driver.ErrNotImplemented
	}
	was := shapeUpgrade(up.Upgrade())
	if was.Pending {
		err := up.CommitUpgrade()
		s.Log.Info("upgrade of the state file committed", "by", who(r), "from", was.From, "to", was.To, "error", err)
		if err != nil {
			return err
		}
	}
	was.Committed, was.Pending, was.LeftNS = was.Pending, false, 0
	return writeJSON(w, was)
}

func shapeUpgrade(u state.Upgrade, pending bool) Upgrade {
	if !pending {
		return Upgrade{}
	}
	return Upgrade{Pending: true, From: u.From, To: u.To, Since: instant(u.Since), LeftNS: int64(u.Left)}
}

// Upgrade returns how the node's state file stands.
func (c *Client) Upgrade(ctx context.Context) (u Upgrade, err error) {
	return u, c.call(ctx, http.MethodGet, "/v1/upgrade", nil, &u)
}

// CommitUpgrade ends a pending upgrade now: from here on the program of before cannot
// be put back. It returns what was committed; without one nothing is.
func (c *Client) CommitUpgrade(ctx context.Context) (u Upgrade, err error) {
	return u, c.call(ctx, http.MethodPost, "/v1/upgrade/commit", nil, &u)
}
