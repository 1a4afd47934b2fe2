// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"reflect"
	"slices"
	"strings"

	"github.com/nodekeep/nodekeep/spec"
)

// warnSameIndex logs which allocs come with other content under the modify index
// that they had: they are not looked at again, and whoever edits an alloc by hand
// wonders why nothing happens. Once for each alloc and index, and only if somebody
// reads the log: comparing costs.
func (a *Agent) warnSameIndex(d Desired) {
	if !a.log.IsWarn() {
		return
	}
	for _, al := range d.Allocs {
		e, err := a.entry(al.ID)
		if err != nil || e.runner == nil || e.place.Epoch != d.Epoch {
			continue
		}
		has := e.runner.Snapshot().Alloc
		if has == nil || has.ModifyIndex != al.ModifyIndex || e.warned.Load() == al.ModifyIndex+1 || sameAlloc(has, al) {
			continue
		}
		changes := slices.DeleteFunc(spec.Diff(has, al), func(c spec.Change) bool {
			return c.Path == "create_time" || strings.HasSuffix(c.Path, "origin") // tells of the writing, not of what runs
		})
		if len(changes) == 0 {
			continue
		}
		e.warned.Store(al.ModifyIndex + 1)
		fields := make([]string, len(changes))
		for i, c := range changes {
			fields[i] = c.Path
		}
		a.log.Warn("an alloc has changed but its ModifyIndex has not, so the change is passed over: raise ModifyIndex, and Desired.Index with it",
			"alloc_id", al.ID, "modify_index", al.ModifyIndex, "changed", strings.Join(fields, ", "))
	}
}

// sameAlloc compares fast what is the same most of the time.
func sameAlloc(has, al *spec.Alloc) bool { return reflect.DeepEqual(has, al.WithDefaults()) }
