// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package drivermanager runs drivers.
package drivermanager
