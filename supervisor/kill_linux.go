// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Without a cgroup a task carries a mark that all its descendants inherit,
// whatever they do to their session, environment and descriptors: the soft limit
// of RLIMIT_RTTIME, a number of microseconds (150,000 years and more) that no
// process ever reaches. It follows from the scope and the task's ID, so it is
// known before the fork and after every crash.

// The low bits are 0. A command that runs beside the task has a number there, in
// any case: the cgroup would not tell it from the task.
const (
	markBit  = 1 << 62
	execBits = 1<<16 - 1
)

func markOf(dir, id string) uint64 { return markBit | hash(dir+"\x00"+id)>>2&^execBits }

// carries says whether a process with mark m belongs to whom mark names: a task
// with all its commands, or one command.
func carries(m, mark uint64) bool {
	return m != 0 && (m == mark || mark&execBits == 0 && m&^execBits == mark)
}

// setMark sets the limit of this process, which the next child inherits, and
// returns how to set it back. Where the host has lowered the hard limit there
// are no marks.
func setMark(mark uint64) (back func()) {
	const rlimitRTTime = 15
	var l syscall.Rlimit
	if syscall.Getrlimit(rlimitRTTime, &l) != nil {
		return func() {}
	}
	was := l
	l.Cur = mark
	_ = syscall.Setrlimit(rlimitRTTime, &l)
	return func() { _ = syscall.Setrlimit(rlimitRTTime, &was) }
}

// markedWith returns the mark of a process, 0 if it has none. It is not known of
// one that has ended.
func markedWith(pid int) (mark uint64, known bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil || len(b) == 0 {
		return 0, false
	}
	_, rest, ok := strings.Cut(string(b), "Max realtime timeout")
	if !ok {
		return 0, true
	}
	f := strings.Fields(rest)
	if len(f) == 0 {
		return 0, true
	}
	n, err := strconv.ParseUint(f[0], 10, 64)
	if err != nil || n&markBit == 0 || n >= 2*markBit {
		return 0, true
	}
	return n, true
}

// sweep sends sig to every process with the mark, and to every member of the
// session that the process (pid, start) leads, as long as that one keeps the
// number taken. It returns how many it found.
func sweep(mark uint64, pid int, start uint64, sig syscall.Signal) (found int) {
	members(mark, pid, start, func(pid int, start uint64) {
		found++
		signalExactly(pid, start, sig)
	})
	return found
}

// members calls each for all that sweep would find, and returns how many
// processes had ended before it got to look at them.
func members(mark uint64, pid int, start uint64, each func(pid int, start uint64)) (missed int) {
	session := ""
	if pid != 0 && startOf(pid) == start {
		session = strconv.Itoa(pid)
	}
	d, err := os.Open("/proc")
	if err != nil {
		return 0
	}
	names, _ := d.Readdirnames(-1)
	_ = d.Close()
	for _, name := range slices.Backward(names) { // the newest first: what forks and ends is there
		p, err := strconv.Atoi(name)
		if err != nil || p <= 1 || p == os.Getpid() {
			continue
		}
		st := procStat(p)
		if st == nil {
			missed++
			continue
		}
		ours := session != "" && st[statSession] == session
		if !ours {
			m, known := markedWith(p)
			if !known {
				missed++
			}
			ours = mark != 0 && carries(m, mark)
		}
		if !ours {
			continue
		}
		if st[statState] == "Z" || st[statState] == "X" {
			missed++ // it may have had a child since it was listed
			continue
		}
		began, _ := strconv.ParseUint(st[statStart], 10, 64)
		each(p, began)
	}
	return missed
}

// surePasses is how often sweepAll looks, finding nothing, while processes end
// under its eyes that may have been ours and have left a child.
const surePasses = 20

// sweepAll kills all that carries the mark until nothing is left, and returns
// what does not die. A task that forks and ends faster than it is looked for is
// not taken for gone: nothing is left once a look found nothing and missed
// nothing.
func sweepAll(mark uint64) (left int) {
	end := time.Now().Add(destroyBound)
	empty := 0
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		left = 0
		missed := members(mark, 0, 0, func(pid int, start uint64) {
			left++
			killGroupOf(pid, start)
		})
		if empty++; left > 0 {
			empty = 0
		}
		if left == 0 && (missed == 0 || empty == surePasses) || time.Now().After(end) {
			return left
		}
		if left > 0 {
			time.Sleep(pause)
		}
	}
}

// killGroupOf kills a process and its process group, all at once. A group is
// within one session, so that all of it is the task's, and its number cannot
// become another's while a member is held by SIGSTOP.
func killGroupOf(pid int, start uint64) {
	if !signalExactly(pid, start, syscall.SIGSTOP) {
		return
	}
	if st := procStat(pid); st != nil && st[statStart] == strconv.FormatUint(start, 10) {
		if group, _ := strconv.Atoi(st[statGroup]); group > 1 && group != syscall.Getpgrp() {
			_ = syscall.Kill(-group, syscall.SIGKILL)
		}
	}
	signalExactly(pid, start, syscall.SIGKILL)
}

// signalExactly reaches one process and never another that has its pid by now.
func signalExactly(pid int, start uint64, sig syscall.Signal) (sent bool) {
	const sysPidfdSendSignal = 424
	fd, _, e := syscall.Syscall(sysPidfdOpen, uintptr(pid), 0, 0)
	if e != 0 {
		return false
	}
	if startOf(pid) == start {
		_, _, e = syscall.Syscall6(sysPidfdSendSignal, fd, uintptr(sig), 0, 0, 0, 0)
		sent = e == 0
	}
	_ = syscall.Close(int(fd))
	return sent
}
