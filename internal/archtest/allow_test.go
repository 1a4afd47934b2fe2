// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package archtest

// allow lists the exceptions: {rule, where} and why. One that is not needed any
// more fails the test.
var allow = map[[2]string]string{
	{"init", "supervisor"}:                     "the helper process enters here, before the host's own main",
	{"exported names", "driver"}:               "a contract of plain data: what a driver is told and what it may answer",
	{"sleep in test", "supervisor.eventually"}: "polls real processes until a deadline",
}
