// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package pluginpb is the part of the plugin wire that drivers and devices share:
// the base service, schemas, attributes, the mark of recoverable errors, and what
// nodekeep adds for its own plugins. It is generated from the .proto files beside
// it; "make proto" does that. Names and numbers are facts of the wire that existing
// plugins and agents share: never change one.
//
// Programs that link another implementation of the same wire cannot link this one
// too: protobuf's registry has one message of a name.
package pluginpb
