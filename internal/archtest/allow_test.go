// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package archtest

// allow lists the exceptions: {rule, where} and why. One that is not needed any
// more fails the test.
var allow = map[[2]string]string{
	{"init", "supervisor"}:        "the helper process enters here, before the host's own main",
	{"init", "driver/exec/entry"}: "so do creators of containers",
	{"exported names", "driver"}:  "a contract of plain data: what a driver is told and what it may answer",
	{"exported names", "api"}:     "a client, and the shapes of all that it is told",

	{"struct size", "..Config"}: "all that a host chooses, on one page; what belongs together is a struct of its own already",

	{"sleep in test", "internal/guard.TestRun"}:                     "in a table whose functions run inside synctest.Test",
	{"sleep in test", "internal/cgroup.eventually"}:                 "polls the kernel until a deadline",
	{"sleep in test", "supervisor.eventually"}:                      "polls real processes until a deadline",
	{"sleep in test", "driver/rawexec.eventually"}:                  "the same",
	{"sleep in test", "driver/exec.eventually"}:                     "the same",
	{"sleep in test", "driver/driverplugin.eventually"}:             "the same",
	{"sleep in test", "drivermanager.eventually"}:                   "the same",
	{"sleep in test", "supervisor.TestSupervisorKilledDuringStart"}: "picks the moment of a kill; nothing relies on what was reached by then",
	{"sleep in test", "supervisor.TestAgentDiesDuringStart"}:        "the same",
	{"sleep in test", "supervisor.TestKilledDuringContainedStart"}:  "the same",
	{"sleep in test", "supervisor.TestIdle"}:                        "measures that nothing happens for as long",
}
