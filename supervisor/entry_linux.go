// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"os"
	"syscall"
)

const (
	argv0     = "nodekeep-supervisor"
	cookieKey = "NODEKEEP_SUPERVISOR"
	cookie    = "v1:8c0f53d1"

	fdListen, fdLock, fdRest = 3, 4, 5 // what a supervisor is given beside stdio
)

// init turns this process into a supervisor if it was started as one: private
// argv[0] and cookie. It never returns then, and does nothing otherwise.
func init() {
	if len(os.Args) == 2 && os.Args[0] == argv0 && os.Getenv(cookieKey) == cookie {
		os.Exit(serve(os.Args[1]))
	}
}

// serve serves the scope dir on the inherited descriptors until it is empty and
// nobody is connected.
func serve(dir string) int {
	dropInherited(fdRest) // whoever started the agent waits for the end of its pipes
	syscall.CloseOnExec(fdListen)
	syscall.CloseOnExec(fdLock)
	becomeSubreaper()
	nameProcess("nodekeep-superv") // exec named it after a descriptor
	_ = os.Unsetenv(cookieKey)
	if err := syscall.SetNonblock(fdListen, true); err != nil {
		println("supervisor: listener:", err.Error())
		return 1
	}
	s := newServer(dir)
	if err := s.openJournal(); err != nil {
		println("supervisor:", err.Error())
		return 1
	}
	go s.reap()
	go s.handleSignals()
	s.mu.Lock()
	s.listen(os.NewFile(fdListen, "listen"))
	s.mu.Unlock()
	return <-s.quit
}
