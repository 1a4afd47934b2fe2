// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"iter"
	"os"
	"strconv"
	"strings"
)

// KillMarked ends what is left of tasks without a cgroup that no supervisor and no
// journal knows any more. It is for whoever ends an alloc of which nothing else
// can be read, after the scopes that are there were ended.
//
// A process is taken for one of them only if it carries a supervisor's mark, which
// nothing else on a machine has, and that mark is the one of a task of this scope
// named in ids, or its output goes to a FIFO of this scope whose LogSpec.ID begins
// with logs ("" for none). All that carries the same mark goes with it. No
// pid is read from a file; each is looked at, and killed through a pidfd if it has
// begun when the one that was looked at did.
func (p *Pool) KillMarked(scope, logs string, ids iter.Seq[string]) (killed int, err error) {
	dir := p.cfg.Dir + "/" + escapeName(scope)
	found := p.marks(dir+"/io/"+escapeName(logs), logs != "")
	if len(found) == 0 {
		return 0, nil // as nearly always: the rest need not be computed
	}
	for id := range ids {
		if m := markOf(dir, id); found[m] > 0 {
			found[m] = -found[m]
		}
	}
	for mark, n := range found {
		if n > 0 {
			continue
		}
		killed -= n
		if left := sweepAll(mark); left > 0 {
			err = errors.Join(err, errors.New("supervisor: scope "+scope+": "+itoa(left)+" processes of a lost task do not die"))
		}
	}
	return killed, err
}

// marks counts the processes of each mark of a task that there is, negative for
// those of which one writes to a path that begins with fifos.
func (p *Pool) marks(fifos string, byFIFO bool) map[uint64]int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	names, _ := d.Readdirnames(-1)
	_ = d.Close()
	found, proved := map[uint64]int{}, map[uint64]bool{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid <= 1 || pid == os.Getpid() {
			continue
		}
		m, _ := markedWith(pid)
		if m == 0 || serverOf(pid) != "" { // a supervisor has its child's mark while it forks
			continue
		}
		m &^= execBits
		found[m]++
		for _, fd := range []string{"1", "2"} {
			if to, err := os.Readlink("/proc/" + name + "/fd/" + fd); byFIFO && err == nil && strings.HasPrefix(to, fifos) {
				proved[m] = true
			}
		}
	}
	for m := range proved {
		found[m] = -found[m]
	}
	return found
}
