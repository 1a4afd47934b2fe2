// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package creator

import (
	"os"
	"testing"
)

func TestDone(t *testing.T) {
	var o once
	if err := Done(&o, os.Getpid()); err != nil {
		t.Fatal(err)
	}
}
