// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocdir

// openNonblock: there are no FIFOs in directories here.
const openNonblock = 0
