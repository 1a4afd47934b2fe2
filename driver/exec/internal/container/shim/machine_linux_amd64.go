// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package shim

const machine = 62 // EM_X86_64
