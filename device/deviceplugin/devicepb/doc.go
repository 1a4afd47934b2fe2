// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package devicepb is the device service of the plugin wire. It is generated from
// the .proto files beside it; "make proto" does that. Names and numbers are facts
// of the wire that existing plugins and agents share: never change one.
//
// Programs that link another implementation of the same wire cannot link this one
// too: protobuf's registry has one message of a name.
package devicepb
