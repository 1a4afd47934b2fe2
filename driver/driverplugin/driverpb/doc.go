// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package driverpb is the wire of driver plugins, generated from the .proto files
// beside it; "make proto" does that. Names and numbers are facts of the wire that
// existing plugins and agents share: never change one. Package driverplugin is
// what to use.
package driverpb
