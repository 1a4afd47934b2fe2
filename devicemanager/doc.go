// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package devicemanager holds a node's device plugins, those in this process and
// those that are programs of their own, and gives devices to tasks.
package devicemanager
