// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package sysfs

import "errors"

func listen(*Config) (source, error) { return nil, errors.ErrUnsupported }
