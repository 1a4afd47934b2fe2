// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package archtest holds the code to its drawing. It has only tests:
//
//	layout_test.go   who may import whom, and what must not be linked where
//	rules_test.go    sizes, docs, headers, and what must not be written
//	allow_test.go    the exceptions, each with its reason
//	tree_test.go     reads the module's source, for every system at once
//
// A rule that proves wrong is changed here in the commit that breaks it.
package archtest
