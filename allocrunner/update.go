// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"fmt"
	"strings"

	"github.com/nodekeep/nodekeep/spec"
)

// ReplaceError is an update that would change what only a new alloc can change.
// Nothing of it was applied. It is ErrNeedsReplacement.
type ReplaceError struct {
	Fields []string // as in JSON, tasks by name: "tasks[web].driver"
}

func (e *ReplaceError) Error() string {
	return fmt.Sprintf("%v: %s changed; stop this alloc and place a new one",
		ErrNeedsReplacement, strings.Join(e.Fields, ", "))
}

// Is makes errors.Is(err, ErrNeedsReplacement) true.
func (e *ReplaceError) Is(target error) bool { return target == ErrNeedsReplacement }

// replaced names the fields of an update that cannot change in place.
func replaced(old, now *spec.Alloc) []string { return spec.Replaced(spec.Diff(old, now)) }
