// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/spec"
)

// Desired is what a control plane wants of this node: the whole set of allocs.
//
// Index orders lists and is the space of the allocs' ModifyIndex; within an
// epoch it never falls, and removing an alloc raises it. Epoch changes when the
// control plane's store was restored from a backup. Token is the control
// plane's own, to resume from; the agent only keeps it.
//
// An alloc that the agent has already is looked at again only if its ModifyIndex
// is higher than before: other content under the same one changes nothing.
type Desired struct {
	Epoch  string        `json:"epoch,omitempty"`
	Index  uint64        `json:"index"`
	Token  string        `json:"token,omitempty"`
	Full   bool          `json:"full,omitempty"` // from a full fetch, not a resumed one
	Allocs []*spec.Alloc `json:"allocs"`
}

// AllocStatus is one alloc as the agent sees it. It is a copy: immutable.
type AllocStatus struct {
	Alloc *spec.Alloc
	allocrunner.Snapshot
	// Gone says that the alloc was collected: only its last status is left.
	Gone bool
	// Quarantined says why its record could not be read; empty for all others.
	Quarantined string
}

// DriverStatus is one driver and its latest fingerprint.
type DriverStatus struct {
	Name        string            `json:"name"`
	Version     string            `json:"version,omitempty"`
	Detected    bool              `json:"detected"`
	Healthy     bool              `json:"healthy"`
	Description string            `json:"description,omitempty"`
	Attributes  map[string]string `json:"attributes,omitempty"`
}
