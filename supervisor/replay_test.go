// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// What the first release of version 1 put on the wire and into its journal is
// under testdata, as it was recorded there. Both sides of today have to get along
// with it, however much they say themselves by now.

// oldFrame is one recorded frame: what must be in it, not all that may be.
type oldFrame struct {
	kind   uint8
	id     uint32
	fields []oldField
}

type oldField struct {
	tag   uint8
	value string
}

var oldFieldText = regexp.MustCompile(`(\d+)=("(?:[^"\\]|\\.)*")`)

// oldSession returns the recorded frames by connection, requests before answers.
func oldSession(t *testing.T) (connections [][]oldFrame) {
	t.Helper()
	b, err := os.ReadFile("testdata/session-v1.txt")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(b)) {
		if strings.HasPrefix(l, "#") {
			connections = append(connections, nil)
			continue
		}
		head := strings.Fields(l)
		kind, err1 := strconv.Atoi(head[1])
		id, err2 := strconv.Atoi(head[2])
		f := oldFrame{kind: uint8(kind), id: uint32(id)}
		for _, m := range oldFieldText.FindAllStringSubmatch(l, -1) {
			tag, err := strconv.Atoi(m[1])
			value, err3 := strconv.Unquote(m[2])
			if err = errors.Join(err, err1, err2, err3); err != nil {
				t.Fatal(l, err)
			}
			f.fields = append(f.fields, oldField{uint8(tag), value})
		}
		last := &connections[len(connections)-1]
		*last = append(*last, f)
	}
	return connections[1:] // the first line is a comment
}

// vars stand for what differs from run to run; an unknown one is whatever comes.
type vars map[string]string

func (v vars) fill(s string) string {
	return os.Expand(s, func(name string) string { return v[name] })
}

// bytes encodes the frame as version 1 did.
func (f oldFrame) bytes(v vars, id uint32) []byte {
	body := append([]byte{f.kind}, 0, 0, 0, 0)
	put32(body[1:], id)
	for _, x := range f.fields {
		s := v.fill(x.value)
		body = append(body, x.tag, 0, 0, 0, 0)
		put32(body[len(body)-4:], uint32(len(s)))
		body = append(body, s...)
	}
	b := make([]byte, 4, 4+len(body))
	put32(b, uint32(len(body)))
	return append(b, body...)
}

// missing returns what of the recorded frame is not in b, and learns variables.
func (f oldFrame) missing(b []byte, v vars) (l []oldField) {
	var have []oldField
	each(b[5:], func(tag uint8, s string, _ int64) { have = append(have, oldField{tag, s}) })
	for _, want := range f.fields {
		name, isVar := strings.CutPrefix(want.value, "${")
		name, isVar2 := strings.CutSuffix(name, "}")
		if i := slices.IndexFunc(have, func(h oldField) bool { return h.tag == want.tag }); isVar && isVar2 && i >= 0 && v[name] == "" {
			v[name] = have[i].value
		}
		if !slices.Contains(have, oldField{want.tag, v.fill(want.value)}) {
			l = append(l, want)
		}
	}
	if b[0] != f.kind {
		l = append(l, oldField{value: "kind " + itoa(int(f.kind))})
	}
	return l
}

// An old agent's session with today's supervisor.
func TestReplayOldAgent(t *testing.T) {
	r := newRig(t)
	pid := r.pid()
	v := vars{"BASE": r.base, "SUPERVISOR": itoa(pid)}
	for n, frames := range oldSession(t) {
		f, err := dial(r.dir)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			r.waitLog("web.stdout", "up")
		}
		if err := f.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		var buf []byte
		for _, frame := range frames {
			if frame.kind != kReply {
				if _, err := f.Write(frame.bytes(v, frame.id)); err != nil {
					t.Fatal(err)
				}
				continue
			}
			b, err := readFrame(f, &buf, maxReply)
			if err != nil {
				t.Fatalf("connection %d, instead of the answer to %d: %v", n, frame.id, err)
			}
			if l := frame.missing(b, v); get32(b[1:]) != frame.id || len(l) > 0 {
				t.Errorf("connection %d: the answer to %d lacks %v: %q", n, frame.id, l, b)
			}
			_ = r.p.Close() // now that it is another's, who is alone from here on
		}
		_ = f.Close()
	}
	gone(t, pid) // shut down
	if got := r.log("web.stdout"); !strings.Contains(got, "got") {
		t.Errorf("logged %q", got)
	}
}

// Today's agent with an old supervisor's answers.
func TestReplayOldSupervisor(t *testing.T) {
	session := oldSession(t)
	v := vars{"PID": "4711", "START": "99", "BOOT": "boot", "SUPERVISOR": "17"}
	var mu sync.Mutex
	next := 0
	s := rawServer(t, func() func(b []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		frames := session[min(next, len(session)-1)]
		next++
		return func(b []byte) []byte {
			mu.Lock()
			defer mu.Unlock()
			i := slices.IndexFunc(frames, func(f oldFrame) bool { return f.kind == b[0] })
			if i < 0 {
				t.Errorf("a request of kind %d is new here", b[0])
				return nil
			}
			if l := frames[i].missing(b, v); len(l) > 0 {
				t.Errorf("the request %d lacks %v: %q", frames[i].id, l, b)
			}
			answer := frames[i+1]
			frames = slices.Delete(slices.Clone(frames), i, i+2)
			return answer.bytes(v, get32(b[1:]))
		}
	})
	base := filepath.Dir(s.pool.cfg.Dir)
	v["BASE"] = base
	ctx := t.Context()
	io := s.dir + "/io/a%2Fweb"
	o, e, err := s.Logs(ctx, LogSpec{ID: "a/web", Task: "web", Dir: base + "/logs", MaxSize: 1 << 20, MaxFiles: 3})
	if err != nil || o != io+".stdout" || e != io+".stderr" {
		t.Fatal(o, e, err)
	}
	const script = "trap 'echo got; exit 7' USR1; echo up; while :; do sleep 0.01; done"
	want := Status{ID: "a/web/0", PID: 4711, Start: 99, BootID: "boot"}
	st, err := s.Start(ctx, Spec{ID: "a/web/0", Path: "/bin/sh", Args: []string{"sh", "-c", script},
		Env: []string{"PATH=/bin:/usr/bin", "A=b"}, Stdout: o, Stderr: e, ExitDir: base + "/logs"})
	if err != nil || st != want {
		t.Fatal(st, err)
	}
	if st, err = s.Lookup(ctx, "a/web/0"); err != nil || st != want {
		t.Error(st, err)
	}
	if _, err = s.Lookup(ctx, "nobody"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	_ = s.pool.Close()
	p, err := NewPool(s.pool.cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	s = p.Scope("s")
	st, err = s.Adopt(ctx, Identity{ID: "a/web/0", PID: 4711, Start: 99, BootID: "boot", Stdout: o, Stderr: e, ExitDir: base + "/logs"})
	if err != nil || st != want {
		t.Error(st, err)
	}
	if _, err = s.Start(ctx, Spec{ID: "bad", Path: "/no/such/program"}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err = errors.Join(s.Stop(ctx, "a/web/0", syscall.SIGURG, time.Hour), s.Signal(ctx, "a/web/0", syscall.SIGUSR1)); err != nil {
		t.Error(err)
	}
	want.Exited, want.Code = true, 7
	if st, err = s.Wait(ctx, "a/web/0"); err != nil || st != want {
		t.Error(st, err)
	}
	if err = s.Destroy(ctx, "a/web/0"); err != nil {
		t.Error(err)
	}
	if err = s.Destroy(ctx, "a/web/0"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err = s.EndLogs(ctx, "a/web"); err != nil {
		t.Error(err)
	}
}

// Today's supervisor takes over an old one's journal: the task, its output and
// the stop that was under way.
func TestReplayOldJournal(t *testing.T) {
	b, err := os.ReadFile("testdata/journal-v1.txt")
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	if err := os.MkdirAll(r.dir+"/io", 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.01; done")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var ends [2]*os.File
	for i, suffix := range suffixes {
		name := r.dir + "/io/a%2Fweb" + suffix
		if err := syscall.Mkfifo(name, 0o600); err != nil {
			t.Fatal(err)
		}
		if ends[i], err = os.OpenFile(name, os.O_RDWR, 0); err != nil {
			t.Fatal(err)
		}
	}
	cmd.Stdout, cmd.Stderr = ends[0], ends[1]
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reaped := make(chan error, 1)
	go func() { reaped <- cmd.Wait() }()
	_, _ = ends[0].Close(), ends[1].Close()
	v := vars{"BASE": r.base, "PID": itoa(cmd.Process.Pid), "START": strconv.FormatUint(startTime(cmd.Process.Pid), 10), "BOOT": bootID(),
		"DEADLINE": strconv.FormatInt(bootTime()+int64(time.Second), 10)}
	if err := os.WriteFile(r.dir+"/journal", []byte(v.fill(string(b))), 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := r.Lookup(t.Context(), "a/web/0")
	if err != nil || st.PID != cmd.Process.Pid || !st.Adopted || st.Exited {
		t.Fatal(st, err)
	}
	r.waitLog("web.stdout", "up")
	if l, err := r.List(t.Context()); err != nil || len(l) != 1 {
		t.Error(l, err)
	}
	if st = r.wait("a/web/0"); !st.Exited {
		t.Error(st)
	}
	if err := <-reaped; err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("ended by %v: the stop was not carried on", err)
	}
	r.destroy("a/web/0")
}
