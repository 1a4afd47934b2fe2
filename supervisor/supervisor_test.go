// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// quick keeps a race-detecting supervisor from sleeping a second at its exit.
var quick = []string{"GORACE=atexit_sleep_ms=0"}

func TestSmoke(t *testing.T) {
	p, err := NewPool(PoolConfig{Dir: filepath.Join(t.TempDir(), "run"), Env: quick, Warn: func(m string) { t.Log(m) }})
	if err != nil {
		t.Fatal(err)
	}
	s := p.Scope("a/b")
	defer func() { b, _ := os.ReadFile(s.dir + "/log"); t.Log(string(b[:min(len(b), 3000)])) }()
	logs := t.TempDir()
	o, e, err := s.Logs(t.Context(), LogSpec{Task: "web", Dir: logs})
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.Start(t.Context(), Spec{ID: "x/web/0", Path: "/bin/sh", Args: []string{"sh", "-c", "echo hello; exit 7"}, Stdout: o, Stderr: e})
	if err != nil {
		t.Fatal(err)
	}
	st, err = s.Wait(t.Context(), st.ID)
	t.Logf("%+v %v", st, err)
	b, _ := os.ReadFile(logs + "/web.stdout.0")
	if string(b) != "hello\n" || st.Code != 7 {
		t.Fatalf("%q", b)
	}
	if err := s.Destroy(t.Context(), st.ID); err != nil {
		t.Fatal(err)
	}
	_, err = s.Start(t.Context(), Spec{ID: "x", Path: "/none"})
	if err == nil || !strings.Contains(err.Error(), "/none") || !os.IsNotExist(unwrapAll(err)) {
		t.Fatal(err)
	}
	st, err = s.Start(t.Context(), Spec{ID: "y", Path: "/bin/sh", Args: []string{"sh", "-c", "trap '' TERM; while :; do sleep 1; done"}, Stdout: o})
	if err != nil {
		t.Fatal(err)
	}
	_, pid, _ := s.Hello(t.Context())
	_ = syscall.Kill(pid, syscall.SIGKILL)
	if err := s.Stop(t.Context(), "y", syscall.SIGTERM, 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	st, err = s.Wait(t.Context(), "y")
	t.Logf("%+v %v", st, err)
	if err := s.Destroy(t.Context(), "y"); err != nil {
		t.Fatal(err)
	}
	if err := s.EndLogs(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, err := p.Names()
	if len(l) != 0 || err != nil {
		t.Fatal(l, err)
	}
	_ = p.Close()
}

func unwrapAll(err error) error {
	if u, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range u.Unwrap() {
			if _, ok := e.(syscall.Errno); ok {
				return e
			}
		}
	}
	return err
}
