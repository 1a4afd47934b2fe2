// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"context"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// oldServer stands in for a supervisor of another version: it holds the lock and
// answers as told.
func oldServer(t *testing.T, answer func(r request) *enc) *Scope {
	t.Helper()
	return rawServer(t, func() func([]byte) []byte {
		return func(b []byte) []byte {
			r, ok := decodeRequest(b)
			if !ok {
				return nil
			}
			if e := answer(r); e != nil {
				return e.done()
			}
			return nil
		}
	})
}

// rawServer is the same with bytes; connect is called for each connection.
func rawServer(t *testing.T, connect func() func(frame []byte) (answer []byte)) *Scope {
	t.Helper()
	dir := base(t)
	p, err := NewPool(PoolConfig{Dir: dir + "/run"})
	if err != nil {
		t.Fatal(err)
	}
	s := p.Scope("s")
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := takeLock(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := listen(s.dir)
	if err == nil {
		err = syscall.SetNonblock(fd, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	l := os.NewFile(uintptr(fd), "listen")
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			f, err := accept(l)
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = f.Close() }()
				var buf []byte
				answer := connect()
				for {
					b, err := readFrame(f, &buf, maxRequest)
					if err != nil {
						return
					}
					_, _ = f.Write(answer(b))
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = p.Close()
		_ = l.Close()
		wg.Wait()
		_ = syscall.Close(lock)
	})
	return s
}

// No answer is taken on trust: a supervisor of another version may ignore a
// filter, not know a request or misunderstand it.
func TestOddAnswers(t *testing.T) {
	s := oldServer(t, func(r request) *enc {
		e := newReply(r.id, nil)
		switch r.kind {
		case kHello:
			return e.num(tVersion, 1).num(tPID, 4711).str(250, "a field of the future")
		case kList: // unfiltered
			(&Status{ID: "first", PID: 1, Start: 1}).encode(e)
			(&Status{ID: "second", PID: 2, Start: 2}).encode(e)
		case kStart, kAdopt:
			(&Status{ID: "first", PID: 1, Start: 1}).encode(e)
		case kWait: // answered although it runs
			(&Status{ID: r.spec.ID, PID: 1, Start: 1}).encode(e)
		case kLogs: // without paths
		default:
			return newReply(r.id, failed("what?", ErrUnsupported))
		}
		return e
	})
	ctx := t.Context()
	if st, err := s.Lookup(ctx, "second"); err != nil || st.PID != 2 {
		t.Errorf("%+v %v", st, err)
	}
	if _, err := s.Lookup(ctx, "third"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if st, err := s.Start(ctx, Spec{ID: "third", Path: "/bin/true"}); err == nil {
		t.Errorf("started %+v", st)
	}
	if _, err := s.Adopt(ctx, Identity{ID: "first", PID: 7, Start: 1, BootID: "b"}); !errors.Is(err, ErrNotProved) {
		t.Error(err)
	}
	if st, err := s.Wait(ctx, "first"); err == nil {
		t.Errorf("ended %+v", st)
	}
	if _, _, err := s.Logs(ctx, LogSpec{Task: "a", Dir: "/"}); err == nil {
		t.Error("FIFOs without paths")
	}
	if err := s.Stop(ctx, "first", syscall.SIGTERM, 0); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
}

// A supervisor that does not answer is waited for as long as the caller wants.
func TestSilentServer(t *testing.T) {
	s := oldServer(t, func(request) *enc { return nil })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.List(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.List(context.Background()); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
	_ = s.pool.Close()
	wg.Wait()
}

// A supervisor never waits for an agent that does not read: what it owes is
// bounded, and the others are served.
func TestAgentThatDoesNotRead(t *testing.T) {
	r := newRig(t)
	for i := range 50 {
		r.start(Spec{ID: "t" + strconv.Itoa(i), Path: "/bin/sleep", Args: []string{"sleep", "60"}})
	}
	f, err := dial(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	sent, werr := 0, error(nil)
	for ; werr == nil && sent < 1<<20; sent++ {
		_, werr = f.Write(newFrame(kList, uint32(sent)).done())
	}
	if werr == nil {
		t.Fatal("never closed")
	}
	if _, err := io.Copy(io.Discard, f); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	if l, err := r.List(t.Context()); err != nil || len(l) != 50 {
		t.Fatal(len(l), err)
	}
	if m := rollup(t, r.pid(), "Rss"); m > 120<<10 {
		t.Errorf("%d kB resident", m)
	}
	t.Logf("closed after %d requests", sent)
}

// The package is loaded before every start of a supervisor, in every program
// that links it: what it may import is bounded.
func TestImports(t *testing.T) {
	files, _ := filepath.Glob("*.go")
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			if p, _ := strconv.Unquote(i.Path.Value); forbidden[p] {
				t.Errorf("%s imports %s", name, p)
			}
		}
	}
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Skip("no go tool here: ", err)
	}
	for p := range strings.FieldsSeq(string(out)) {
		if forbidden[p] {
			t.Errorf("%s is linked", p)
		}
		if !strings.Contains(strings.SplitN(p, "/", 2)[0], ".") { // the standard library
			continue
		}
		if own := strings.TrimPrefix(p, "github.com/nodekeep/nodekeep/"); own != "supervisor" && own != "internal/cgroup" && own != "internal/creator" &&
			own != "logmon" && !strings.HasPrefix(own, "logmon/internal/") {
			t.Errorf("%s is linked", p)
		}
	}
}

var forbidden = map[string]bool{
	"net": true, "encoding/json": true, "os/exec": true, "fmt": true, "reflect": true, "regexp": true, "text/template": true, "log": true,
}

// An idle supervisor does not wake up at all.
func TestIdle(t *testing.T) {
	for _, wide := range []bool{false, true} {
		t.Run("wide="+strconv.FormatBool(wide), func(t *testing.T) {
			r := newRigAt(t, base(t), PoolConfig{Wide: wide})
			for i := range 5 {
				id := "t" + strconv.Itoa(i)
				r.start(r.sh(id, "echo up; exec sleep 600"))
				r.waitLog(id+".stdout", "up")
				go func() { _, _ = r.Wait(context.Background(), id) }()
			}
			r.destroy("t4")
			r.killSupervisor() // three adopted ones idle as well
			r.start(r.sh("t5", "exec sleep 600"))
			pid := r.pid()
			const quiet = 5 * time.Second
			for range 5 { // the runtime goes to rest in steps
				before := switches(t, pid)
				time.Sleep(quiet)
				if after := switches(t, pid); after == before {
					t.Logf("PSS %d kB, anonymous %d kB, %d threads, 6 tasks", rollup(t, pid, "Pss"), rollup(t, pid, "Anonymous"), count(pid, "task"))
					return
				}
			}
			t.Error("it wakes up")
		})
	}
}

// switches sums the context switches of all threads.
func switches(t *testing.T, pid int) (n int) {
	t.Helper()
	l, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/status")
	if err != nil || len(l) == 0 {
		t.Fatal("no threads")
	}
	for _, name := range l {
		b, _ := os.ReadFile(name)
		for line := range strings.Lines(string(b)) {
			if _, v, ok := strings.Cut(line, "ctxt_switches:"); ok {
				c, _ := strconv.Atoi(strings.TrimSpace(v))
				n += c
			}
		}
	}
	return n
}

func rollup(t *testing.T, pid int, key string) int {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err != nil {
		t.Skip(err)
	}
	return field(string(b), key)
}

// field returns the number after "key:" in a file of /proc.
func field(text, key string) int {
	_, v, ok := strings.Cut(text, "\n"+key+":")
	if !ok {
		return 0
	}
	n, _ := strconv.Atoi(strings.Fields(v)[0])
	return n
}

// Goroutines of an agent: one per connected scope, none per task or Wait.
func TestAgentGoroutines(t *testing.T) {
	r := newRig(t)
	r.pid()
	before := runtime.NumGoroutine()
	for i := range 20 {
		r.start(Spec{ID: "t" + strconv.Itoa(i), Path: "/bin/sleep", Args: []string{"sleep", "60"}})
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines, were %d", n, before)
	}
}
