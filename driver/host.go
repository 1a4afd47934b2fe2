// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"encoding/json"
)

// Configurer is a driver that the operator can configure, or that wants to know
// the node.
type Configurer interface {
	// Configure is called before any task is started or recovered. It may be called
	// more than once, at first without node; the last call counts. An error means
	// that the driver cannot be used with this configuration; its text goes to the
	// operator.
	Configure(ctx context.Context, setup Setup) error
}

// Setup is what a driver is configured with.
type Setup struct {
	// Config is decoded against Info.ConfigSchema, an object with every attribute
	// present; nil where the driver has no schema.
	Config json.RawMessage
	Node   *Node // nil: only to be checked
}

// Node is what a driver may want to know of the node it runs on.
type Node struct {
	MinPort, MaxPort int // loopback ports that its helpers may listen on
	Cores            []Core
	TotalMHz         int64 // instead of what the cores sum up to; 0 is that
	ReservedMHz      int64 // kept away from tasks
	// Distances between memory nodes, as rows in the order of NodeIDs.
	NodeIDs   []int
	Distances [][]int
}

// Core is a logical processor.
type Core struct {
	ID, Socket, NodeID        int
	Efficiency                bool // a small core
	Disabled                  bool // no task may use it
	BaseMHz, MaxMHz, GuessMHz int64
}

// EventSource is a driver that has something to tell of its tasks by itself.
type EventSource interface {
	// Events streams what happens to all tasks from now on. The channel is closed
	// when ctx ends, or when the driver can say no more; ask again then. What a
	// slow reader does not take is lost.
	Events(ctx context.Context) (<-chan Event, error)
}

// Networker is a driver with Capabilities.MustInitNetwork.
type Networker interface {
	// CreateNetwork makes the alloc's network namespace or finds the one it made
	// before; created says which. A nil network isolates nothing.
	CreateNetwork(ctx context.Context, allocID, hostname string) (n *Network, created bool, err error)
	// DestroyNetwork removes what CreateNetwork returned. Nothing left is no error.
	DestroyNetwork(ctx context.Context, allocID string, n *Network) error
}
