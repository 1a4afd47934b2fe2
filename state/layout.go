// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

// metaNode is the store's own node; nobody sees it.
const metaNode = "_store"
