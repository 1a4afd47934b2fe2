// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden frames of this version")

var (
	fullSpec = Spec{
		ID: "alloc/web/0", Path: "/bin/sh", Args: []string{"sh", "", "-c"}, Env: []string{"A=b=c", "E=", "N=1\n2"}, Dir: "/tmp",
		Stdout: "/o", Stderr: "/e", Cgroup: "/cg", ExitDir: "/x", SetUser: true, UID: 1, GID: 2, Groups: []int{0, 3}, OOMScoreAdj: -500,
	}
	fullStatus = Status{
		ID: "alloc/web/0", PID: 4711, Start: 1 << 40, BootID: "b", Exited: true, Code: -1, Signal: 9, OOMKilled: true, Err: "not seen", Adopted: true,
	}
	fullIdentity = Identity{ID: "a", PID: 1, Start: 2, BootID: "b", Cgroup: "/cg", Stdout: "/o", Stderr: "/e", ExitDir: "/x"}
	fullExec     = ExecSpec{Task: "a", Path: "sh", Args: []string{"sh", "-c"}, Env: []string{"A=b"}, TTY: true}
	fullMade     = Spec{ID: "a", Cgroup: "/cg", Stdout: "/o", OOMScoreAdj: 7, Container: &Container{Creator: "/c", Spec: []byte("{\x00}")}}
	fullRunIn    = ExecSpec{Task: "a", Container: &Container{Creator: "/c", Spec: []byte("[]")}}
	fullLogs     = LogSpec{ID: "a/web", Task: "web", Dir: "/logs", MaxSize: 1, MaxFiles: 2, UID: 3, GID: 4}
)

// frames are one of each kind, as this version sends it.
func frames() map[string][]byte {
	spec, ident, logs, st, run := fullSpec, fullIdentity, fullLogs, fullStatus, fullExec
	made, runIn, isolated := fullMade, fullRunIn, fullIdentity
	isolated.Isolated = true
	filled := func(e *enc, fill func(*enc)) []byte { fill(e); return e.done() }
	return map[string][]byte{
		"hello": newFrame(kHello, 1).done(),
		"start": filled(newFrame(kStart, 2), spec.encode),
		"wait":  newFrame(kWait, 3).str(tTask, "a").done(),
		"stop":  newFrame(kStop, 4).str(tTask, "a").num(tSignal, 15).num(tGrace, int64(time.Second)).done(),
		"adopt": filled(newFrame(kAdopt, 5), ident.encode),
		"exec":  filled(newFrame(kExec, 11), run.encode),
		"await": newFrame(kExecWait, 12).str(tTask, "a").done(),
		"hup":   newFrame(kHangup, 13).str(tTask, "a").done(),
		"logs":  filled(newFrame(kLogs, 6), logs.encode),
		"made":  filled(newFrame(kContain, 14), made.encode),
		"runin": filled(newFrame(kExecIn, 15), runIn.encode),
		"mine":  filled(newFrame(kAdopt, 16), isolated.encode),
		"reply": filled(newReply(7, nil), st.encode),
		"error": newReply(8, failed("here", errors.Join(ErrNotFound, syscall.ENOENT))).done(),
		"paths": newReply(9, nil).str(tStdout, "/o").str(tStderr, "/e").done(),
		"greet": newReply(10, nil).num(tVersion, Version).num(tPID, 4711).done(),
	}
}

// What version 1 put on the wire is what it will always be.
func TestGoldenFrames(t *testing.T) {
	const name = "testdata/frames-v1.txt"
	if *update {
		var b bytes.Buffer
		for k, f := range frames() {
			b.WriteString(k + " " + hex.EncodeToString(f) + "\n")
		}
		if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	now := frames()
	for l := range strings.Lines(string(b)) {
		k, v, _ := strings.Cut(strings.TrimSpace(l), " ")
		if got := hex.EncodeToString(now[k]); got != v {
			t.Errorf("%s is\n%s, was\n%s", k, got, v)
		}
		delete(now, k)
	}
	if len(now) > 0 {
		t.Errorf("not in %s: %v", name, now)
	}
}

func TestRoundTrip(t *testing.T) {
	f := frames()
	if r, ok := decodeRequest(f["made"][4:]); !ok || r.kind != kContain || !reflect.DeepEqual(r.spec, fullMade) {
		t.Errorf("%+v", r)
	}
	if r, ok := decodeRequest(f["runin"][4:]); !ok || r.kind != kExecIn || !reflect.DeepEqual(r.spec.Container, fullRunIn.Container) {
		t.Errorf("%+v", r)
	}
	if r, ok := decodeRequest(f["mine"][4:]); !ok || !r.ident.Isolated {
		t.Errorf("%+v", r)
	}
	r, ok := decodeRequest(f["start"][4:])
	if !ok || r.kind != kStart || r.id != 2 || !reflect.DeepEqual(r.spec, fullSpec) {
		t.Errorf("%+v", r)
	}
	if r, ok = decodeRequest(f["adopt"][4:]); !ok || r.ident != fullIdentity {
		t.Errorf("%+v", r)
	}
	if r, ok = decodeRequest(f["logs"][4:]); !ok || r.logSpec() != fullLogs {
		t.Errorf("%+v", r)
	}
	if r, ok = decodeRequest(f["stop"][4:]); !ok || r.spec.ID != "a" || r.signal != 15 || r.grace != time.Second {
		t.Errorf("%+v", r)
	}
	if r, ok = decodeRequest(f["exec"][4:]); !ok || r.kind != kExec || r.spec.ID != "a" || r.spec.Path != "sh" || !r.tty ||
		!reflect.DeepEqual(r.spec.Args, fullExec.Args) || !reflect.DeepEqual(r.spec.Env, fullExec.Env) {
		t.Errorf("%+v", r)
	}
	a, ok := decodeReply(f["reply"][4:])
	if !ok || a.id != 7 || len(a.statuses) != 1 || a.statuses[0] != fullStatus || a.err != nil {
		t.Errorf("%+v", a)
	}
	if a, ok = decodeReply(f["greet"][4:]); !ok || a.version != Version || a.pid != 4711 {
		t.Errorf("%+v", a)
	}
	if a, ok = decodeReply(f["error"][4:]); !ok || !errors.Is(a.err, ErrNotFound) || !errors.Is(a.err, fs.ErrNotExist) || errors.Is(a.err, ErrBusy) {
		t.Errorf("%+v", a)
	}
	// A newer side's fields are skipped, a newer side's error is one.
	e := newFrame(kReply, 1).str(200, "new").str(tErr, "new trouble").num(tErrCode, 99).num(201, 5)
	if a, ok = decodeReply(e.done()[4:]); !ok || a.err == nil || a.err.Error() != "new trouble" {
		t.Errorf("%+v", a)
	}
}

func FuzzDecode(f *testing.F) {
	for _, b := range frames() {
		f.Add(b)
		f.Add(b[4:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, ok := decodeRequest(b); ok {
			e := newFrame(r.kind, r.id)
			r.spec.encode(e)
			again, ok := decodeRequest(e.done()[4:])
			if !ok || !reflect.DeepEqual(again.spec, r.spec) {
				t.Errorf("%+v, was %+v", again.spec, r.spec)
			}
		}
		if r, ok := decodeReply(b); ok {
			for _, st := range r.statuses {
				e := newReply(r.id, nil)
				st.encode(e)
				if again, ok := decodeReply(e.done()[4:]); !ok || again.statuses[0] != st {
					t.Errorf("%+v, was %+v", again.statuses, st)
				}
			}
		}
		var buf []byte
		rd := bytes.NewReader(b)
		for {
			if _, err := readFrame(rd, &buf, 1<<16); err != nil {
				break
			}
		}
	})
}

func TestJournal(t *testing.T) {
	st := fullStatus
	st.Err = "tab\there\nand \\ there"
	rec := record{spec: Spec{ID: st.ID, Cgroup: "/c", Stdout: "/o\t", Stderr: "/e", ExitDir: "/x"}, mark: 1<<62 | 5, killAt: 5, st: st}
	text := string(rec.lines()) + string(logLine(fullLogs)) + string(logLine(LogSpec{ID: "old", Dir: "/"})) + string(line("E", "old")) +
		string(line("B", "forked", "b", "", "", "", "", "7")) + string(line("B", "gone", "b", "", "", "", "", "7")) + string(line("D", "gone")) +
		"S\tnobody\t1\t2\nnonsense\n\n\t\t\nQ\tnew\tkind\n" + strings.TrimSuffix(string(line("D", "forked")), "\n")
	j := parseJournal(text)
	want := rec
	want.st.Adopted = false // whoever reads it knows
	if got := j.tasks[st.ID]; got == nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if len(j.tasks) != 2 || j.tasks["forked"] == nil || j.tasks["forked"].st.PID != 0 || j.tasks["forked"].mark != 7 {
		t.Errorf("%+v", j.tasks)
	}
	if len(j.logs) != 1 || j.logs["a/web"] != fullLogs {
		t.Errorf("%+v", j.logs)
	}
}

// What runs beside a task, and what such a thing is started like, outlives the
// supervisor.
func TestJournalExec(t *testing.T) {
	full := fullSpec
	rec := record{spec: full, mark: 1 << 62, st: Status{ID: full.ID, BootID: "b", PID: 7, Start: 8}}
	text := string(rec.lines()) + string(line("R", full.ID, "11")) + string(line("R", full.ID, "12")) + string(line("R", full.ID, "12", "3", "4")) +
		string(line("R", full.ID, "13", "5", "6")) + string(line("Q", full.ID, "13")) + string(line("R", "nobody", "1"))
	got := parseJournal(text).tasks[full.ID]
	full.Args = nil // not needed any more
	if got == nil || !reflect.DeepEqual(got.spec, full) {
		t.Errorf("%+v, want %+v", got, full)
	}
	if want := (map[uint64]proc{11: {}, 12: {3, 4}}); got == nil || !reflect.DeepEqual(got.execs, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, user := range []string{"1", ""} { // half a user is none: then the process tells, and root is not assumed
		var sp Spec
		sp.setSurroundings([]string{"/bin/x", "/", "0", user, ""})
		if (sp.Path == "") != (user == "1") {
			t.Errorf("%q: %+v", user, sp)
		}
	}
}

func FuzzJournal(f *testing.F) {
	rec := record{spec: Spec{ID: "a", Cgroup: "/c"}, mark: 1, killAt: 5, st: Status{ID: "a", PID: 1, Exited: true, Code: 3}}
	f.Add(string(rec.lines()) + string(logLine(fullLogs)))
	f.Add("B\ta\nS\ta\t1\t2\nX\ta\n")
	f.Fuzz(func(t *testing.T, text string) {
		j := parseJournal(text)
		for id, r := range j.tasks {
			again := parseJournal(string(r.lines())).tasks[id]
			if again == nil || again.st.PID != r.st.PID || r.st.PID != 0 && again.st != r.st {
				t.Errorf("%+v, was %+v", again, r)
			}
		}
		if _, ok := parseExit(text, Status{ID: "a"}); ok && !strings.HasPrefix(text, exitKey) {
			t.Error("an exit out of nothing")
		}
	})
}

func FuzzName(f *testing.F) {
	for _, s := range []string{"a", ".", "..", "a.b", "%41", "a/b", "\x00ü"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e := escapeName(s)
		if strings.ContainsAny(e, "/\x00\n") || e == "." || e == ".." {
			t.Errorf("%q is no file name", e)
		}
		if back, ok := unescapeName(e); s != "" && (!ok || back != s) {
			t.Errorf("%q became %q became %q", s, e, back)
		}
		if back, ok := unescapeName(s); ok && escapeName(back) != s {
			t.Errorf("%q is not what %q makes", s, back)
		}
	})
}
