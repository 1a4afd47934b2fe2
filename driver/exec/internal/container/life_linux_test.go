// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRuns(t *testing.T) {
	r := newRig(t)
	out := r.sh(`echo hello; id; pwd; ls /; cat /etc/hosts; mount | head -50`, nil)
	t.Log(out)
	require.Contains(t, out, "hello")
}
