// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"strconv"
	"strings"
)

// The journal has one line per fact, fields separated by tabs:
//
//	B <id> <boot id> <cgroup> <stdout> <stderr> <exit dir> <mark>
//	  <path> <dir> <oom_score_adj> <uid gid groups…> <environment>  about to fork; the second part for what runs beside it
//	S <id> <pid> <start>                                           forked
//	C <id>                                                         with B: a creator makes it
//	G <id>                                                         with C: about to be let go; its program runs, or will
//	K <id> <deadline>                                              to be killed at that CLOCK_BOOTTIME, ns
//	X <id> <code> <signal> <oom> <err> [<lost>]                    exited, logs drained; 1: or lost
//	R <id> <mark> [<pid> <start>]                                  about to fork a command beside it; forked
//	Q <id> <mark>                                                  that has ended
//	D <id>                                                         acknowledged and forgotten
//	L <id> <dir> <max size> <max files> <uid> <gid> <task>         a FIFO pair was made
//	E <id>                                                         and removed
//
// Lines are written with one write(2) each and no fsync: they must outlive the
// supervisor, not the kernel. Fields are only ever added, at the end.
type journal struct {
	tasks map[string]*record
	logs  map[string]LogSpec
}

// record is what the journal knows of one task; spec has only what is needed
// once a task runs.
type record struct {
	spec   Spec // Container tells only that there is one
	loose  bool // G was written
	mark   uint64
	killAt int64
	st     Status
	execs  map[uint64]proc // by mark
}

type proc struct {
	pid   int
	start uint64
}

// line joins fields to one line of the journal.
func line(f ...string) []byte {
	var b []byte
	for i, v := range f {
		if i > 0 {
			b = append(b, '\t')
		}
		for _, c := range []byte(v) {
			switch c {
			case '\t':
				b = append(b, '\\', 't')
			case '\n':
				b = append(b, '\\', 'n')
			case '\\':
				b = append(b, '\\', '\\')
			default:
				b = append(b, c)
			}
		}
	}
	return append(b, '\n')
}

// fields is the inverse of line.
func fields(l string) []string {
	f := strings.Split(strings.TrimSuffix(l, "\n"), "\t")
	for i, v := range f {
		if strings.Contains(v, `\`) {
			f[i] = strings.NewReplacer(`\\`, `\`, `\t`, "\t", `\n`, "\n").Replace(v)
		}
	}
	return f
}

// parseJournal reads a journal. Lines that make no sense, such as a last one cut
// short, are skipped.
func parseJournal(text string) journal {
	j := journal{map[string]*record{}, map[string]LogSpec{}}
	for l := range strings.Lines(text) {
		if !strings.HasSuffix(l, "\n") {
			break
		}
		if f := fields(l); len(f) >= 2 && f[1] != "" {
			j.apply(f)
		}
	}
	return j
}

func (j journal) apply(f []string) {
	r := j.tasks[f[1]]
	switch {
	case f[0] == "B" && len(f) >= 8:
		j.tasks[f[1]] = &record{
			spec: Spec{ID: f[1], Cgroup: f[3], Stdout: f[4], Stderr: f[5], ExitDir: f[6]},
			mark: uint64(num(f[7])),
			st:   Status{ID: f[1], BootID: f[2]},
		}
		if len(f) >= 13 {
			j.tasks[f[1]].spec.setSurroundings(f[8:13])
		}
	case f[0] == "L" && len(f) >= 8:
		j.logs[f[1]] = LogSpec{
			ID: f[1], Dir: f[2], MaxSize: num(f[3]), MaxFiles: int(num(f[4])),
			UID: int(num(f[5])), GID: int(num(f[6])), Task: f[7],
		}
	case f[0] == "E":
		delete(j.logs, f[1])
	case f[0] == "D":
		delete(j.tasks, f[1])
	case r == nil:
	case f[0] == "S" && len(f) >= 4:
		r.st.PID, r.st.Start = int(num(f[2])), uint64(num(f[3]))
	case f[0] == "R" && len(f) >= 3:
		if r.execs == nil {
			r.execs = map[uint64]proc{}
		}
		p := proc{}
		if len(f) >= 5 {
			p = proc{int(num(f[3])), uint64(num(f[4]))}
		}
		r.execs[uint64(num(f[2]))] = p
	case f[0] == "Q" && len(f) >= 3:
		delete(r.execs, uint64(num(f[2])))
	case f[0] == "C":
		r.spec.Container = &Container{}
	case f[0] == "G":
		r.loose = true
	case f[0] == "K" && len(f) >= 3:
		r.killAt = num(f[2])
	case f[0] == "X" && len(f) >= 6:
		r.st.Exited, r.st.Code, r.st.Signal = true, int(num(f[2])), int(num(f[3]))
		r.st.OOMKilled, r.st.Err = f[4] == "1", f[5]
		r.st.OutputLost = len(f) >= 7 && f[6] == "1"
	}
}

func num(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

// lines writes a record again, for a journal that is made anew.
func (r *record) lines() []byte {
	sp, id := &r.spec, r.spec.ID
	began := []string{"B", id, r.st.BootID, sp.Cgroup, sp.Stdout, sp.Stderr, sp.ExitDir, strconv.FormatUint(r.mark, 10)}
	if sp.Path != "" {
		began = append(began, sp.surroundings()...)
	}
	b := line(began...)
	if sp.Container != nil {
		b = append(b, line("C", id)...)
	}
	if r.st.PID != 0 {
		b = append(b, line("S", id, itoa(r.st.PID), strconv.FormatUint(r.st.Start, 10))...)
	}
	if r.loose {
		b = append(b, line("G", id)...)
	}
	if r.killAt != 0 {
		b = append(b, line("K", id, strconv.FormatInt(r.killAt, 10))...)
	}
	if r.st.Exited {
		b = append(b, exitLine(r.st)...)
	}
	return b
}

// surroundings are what a command beside the task needs to know of it.
func (s *Spec) surroundings() []string {
	user := ""
	if s.SetUser {
		user = itoa(s.UID) + " " + itoa(s.GID)
		for _, g := range s.Groups {
			user += " " + itoa(g)
		}
	}
	return []string{s.Path, s.Dir, itoa(s.OOMScoreAdj), user, strings.Join(s.Env, "\x00")}
}

// setSurroundings is the inverse. A user that makes no sense leaves all of it
// unknown: the process itself tells then.
func (s *Spec) setSurroundings(f []string) {
	var ids []int
	for _, v := range strings.Fields(f[3]) {
		ids = append(ids, int(num(v)))
	}
	if len(ids) == 1 || f[0] == "" {
		return
	}
	s.Path, s.Dir, s.OOMScoreAdj = f[0], f[1], int(num(f[2]))
	if len(ids) > 1 {
		s.SetUser, s.UID, s.GID, s.Groups = true, ids[0], ids[1], ids[2:]
	}
	if f[4] != "" {
		s.Env = strings.Split(f[4], "\x00")
	}
}

func exitLine(st Status) []byte {
	oom := "0"
	if st.OOMKilled {
		oom = "1"
	}
	if st.OutputLost {
		return line("X", st.ID, itoa(st.Code), itoa(st.Signal), oom, st.Err, "1")
	}
	return line("X", st.ID, itoa(st.Code), itoa(st.Signal), oom, st.Err)
}

func logLine(l LogSpec) []byte {
	return line("L", l.ID, l.Dir, strconv.FormatInt(l.MaxSize, 10), itoa(l.MaxFiles), itoa(l.UID), itoa(l.GID), l.Task)
}

const exitKey = "nodekeep-exit-1"

// parseExit reads the record of an exit and checks that it is about the very
// process of want.
func parseExit(text string, want Status) (Status, bool) {
	var head, tail []string
	for l := range strings.Lines(text) {
		if f := fields(l); head == nil {
			head = f
		} else if strings.HasSuffix(l, "\n") {
			tail = f
			break
		}
	}
	if len(head) < 5 || len(tail) < 6 || head[0] != exitKey || tail[0] != "X" || head[1] != want.ID || tail[1] != want.ID ||
		int(num(head[2])) != want.PID || uint64(num(head[3])) != want.Start || head[4] != want.BootID {
		return Status{}, false
	}
	st := want
	st.Exited, st.Code, st.Signal = true, int(num(tail[2])), int(num(tail[3]))
	st.OOMKilled, st.Err = tail[4] == "1", tail[5]
	return st, true
}
