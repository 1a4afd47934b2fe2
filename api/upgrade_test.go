// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/state"
)

// upgrading is an agent whose state file is of an older form.
type upgrading struct {
	*fake
	pending bool
	err     error
}

func (u *upgrading) Upgrade() (state.Upgrade, bool) {
	return state.Upgrade{From: 1, To: 2, Since: time.Unix(7, 0), Left: time.Hour}, u.pending
}

func (u *upgrading) CommitUpgrade() error {
	if u.err == nil {
		u.pending = false
	}
	return u.err
}

func TestUpgrade(t *testing.T) {
	a := &upgrading{fake: newFake(), pending: true, err: errors.New("no space left on device")}
	c := dialConfig(t, Config{Agent: a, Version: "test"})
	u, err := c.Upgrade(t.Context())
	require.NoError(t, err)
	require.Equal(t, Upgrade{Pending: true, From: 1, To: 2, Since: instant(time.Unix(7, 0)), LeftNS: int64(time.Hour)}, u)
	_, err = c.CommitUpgrade(t.Context())
	require.ErrorContains(t, err, "no space left")
	a.err = nil
	u, err = c.CommitUpgrade(t.Context())
	require.NoError(t, err)
	require.True(t, u.Committed)
	require.Equal(t, 2, u.To)
	u, err = c.CommitUpgrade(t.Context())
	require.NoError(t, err)
	require.Equal(t, Upgrade{}, u, "there is none any more")

	_, err = dialFake(t, newFake(), false).Upgrade(t.Context())
	require.ErrorContains(t, err, "not")
}
