// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package shim

const machine = 183 // EM_AARCH64
