// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/nodekeep/nodekeep/logmon"
)

// pair is the two FIFOs of one task, from the first Logs to EndLogs.
type pair struct {
	spec    LogSpec
	streams [2]*stream    // stdout, stderr
	gone    chan struct{} // not nil while EndLogs is at work; closed by it
}

// stream is one FIFO and the pump behind it. We hold it open for writing, so
// its reader never meets an end.
type stream struct {
	path  string
	files logmon.RotateConfig
	rot   *logmon.Rotator
	pump  *logmon.Pump
	done  chan struct{} // the pump has ended
	keep  int           // a descriptor open for reading and writing, outside the poller
	away  bool          // the pump reads another pipe than the FIFO: an adopted task's
}

var suffixes = [2]string{".stdout", ".stderr"}

func (s *server) answerLogs(c *conn, r request) {
	p, err := s.logs(r.logSpec())
	if err != nil {
		c.refuse(r.id, err)
		return
	}
	c.send(newReply(r.id, nil).str(tStdout, p.streams[0].path).str(tStderr, p.streams[1].path))
}

// logs returns the pair of a task, made if need be.
func (s *server) logs(l LogSpec) (*pair, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.pairs[l.ID] != nil && s.pairs[l.ID].gone != nil {
		gone := s.pairs[l.ID].gone
		s.mu.Unlock()
		<-gone
		s.mu.Lock()
	}
	if s.leaving {
		return nil, errLeaving
	}
	p := s.pairs[l.ID]
	if p != nil {
		if err := s.mendPair(p); err != nil {
			return nil, failed("supervisor: logs of "+l.ID, err)
		}
	}
	if p == nil {
		if err := s.note(logLine(l)); err != nil {
			return nil, err
		}
		p = &pair{spec: l}
		if err := s.openPair(p); err != nil {
			return nil, errors.Join(err, s.note(line("E", l.ID)))
		}
		return p, nil
	}
	if p.spec.Dir != l.Dir || p.spec.Task != l.Task {
		return nil, errors.New("supervisor: the logs of " + l.ID + " go to " + p.spec.Dir + "/" + p.spec.Task + ", not to " + l.Dir + "/" + l.Task)
	}
	if p.spec.MaxSize != l.MaxSize || p.spec.MaxFiles != l.MaxFiles {
		p.spec = l
		for _, st := range p.streams {
			st.files.MaxSize, st.files.MaxFiles = l.MaxSize, l.MaxFiles
			st.rot.SetLimits(l.MaxSize, l.MaxFiles)
		}
		return p, s.note(logLine(l))
	}
	return p, nil
}

// mendPair makes FIFOs of the pair again whose names were removed. A name that is
// there but no FIFO's was made by a writer in between: it goes. Called with the
// lock held.
func (s *server) mendPair(p *pair) error {
	for i, st := range p.streams {
		var at syscall.Stat_t
		err := syscall.Lstat(st.path, &at)
		if err == nil && at.Mode&syscall.S_IFMT == syscall.S_IFIFO || p.gone != nil {
			continue
		}
		println("supervisor: making it again:", st.path)
		if err == nil {
			_ = syscall.Unlink(st.path)
		}
		if err := s.remakeStream(p, i); err != nil {
			return err
		}
	}
	return nil
}

// mendFor makes the pairs again that a task about to start writes to. Called with
// the lock held.
func (s *server) mendFor(t *task) error {
	for _, p := range s.pairs {
		for _, st := range p.streams {
			if st.path != t.spec.Stdout && st.path != t.spec.Stderr {
				continue
			}
			if err := s.mendPair(p); err != nil {
				return failed("supervisor: logs of "+p.spec.ID, err)
			}
			break
		}
	}
	return nil
}

// openPair makes or reopens the FIFOs, starts the pumps and enters the pair. A
// failure leaves nothing open; a FIFO that an earlier life left is used again. Called with the
// lock held.
func (s *server) openPair(p *pair) error {
	if name := p.spec.Task; name == "" || len(name) > maxName || strings.ContainsAny(name, "/\x00") {
		return errors.New("supervisor: files cannot be named " + quote(name))
	}
	if err := s.makeIO(p.spec.UID); err != nil {
		return err
	}
	for i := range p.streams {
		st, err := s.openStream(p.spec, i)
		if err != nil {
			if i == 1 {
				p.streams[0].end()
				_ = os.Remove(p.streams[0].path)
			}
			return failed("supervisor: logs of "+p.spec.ID, err)
		}
		p.streams[i] = st
	}
	s.pairs[p.spec.ID] = p
	for _, st := range p.streams {
		s.streams[st.path] = st
	}
	return nil
}

func (s *server) openStream(l LogSpec, i int) (*stream, error) {
	st := &stream{
		path:  s.fifoPath(l.ID, i),
		files: logmon.RotateConfig{Dir: l.Dir, Base: l.Task + suffixes[i], MaxSize: l.MaxSize, MaxFiles: l.MaxFiles},
	}
	r, keep, err := makeFIFO(st.path, l)
	if err != nil {
		return nil, err
	}
	st.keep = keep
	if orphan := s.orphans[st.path]; orphan != nil {
		_ = r.Close() // opened again once the adopted task is gone
		delete(s.orphans, st.path)
		st.away = true
		r = orphan
	}
	st.read(r)
	return st, nil
}

func (s *server) fifoPath(id string, i int) string {
	return s.dir + "/io/" + shortName(id) + suffixes[i]
}

// nobodyHolds says whether a FIFO has no reader. Whoever holds one of ours, agent,
// supervisor or task, can read it; without any the kernel has dropped what was in
// it.
func nobodyHolds(path string) bool {
	fd, err := syscall.Open(path, syscall.O_WRONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err == nil {
		_ = syscall.Close(fd)
	}
	return err == syscall.ENXIO
}

// makeFIFO makes the FIFO, or takes the one an earlier life left, and opens its
// reading end and one that keeps it from ever ending.
func makeFIFO(path string, l LogSpec) (r io.ReadCloser, keep int, err error) {
	err = logmon.Create(path, logmon.Owner{UID: l.UID, GID: l.GID})
	if errors.Is(err, fs.ErrExist) {
		err = nil
		if l.UID != 0 || l.GID != 0 {
			err = os.Lchown(path, l.UID, l.GID)
		}
	}
	if err != nil {
		return nil, -1, err
	}
	if r, err = logmon.OpenReader(path); err == nil {
		keep, err = syscall.Open(path, syscall.O_RDWR|syscall.O_NONBLOCK|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
		if err == nil {
			return r, keep, nil
		}
		_ = r.Close()
	}
	_ = os.Remove(path)
	return nil, -1, err
}

// makeIO makes the directory of the FIFOs. A writer of another user gets here by
// path, so for one the way is opened; the socket and the journal stay ours.
func (s *server) makeIO(uid int) error {
	if err := os.Mkdir(s.dir+"/io", 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return failed("supervisor: logs", err)
	}
	if uid == 0 || uid == os.Geteuid() {
		return nil
	}
	for _, dir := range []string{s.dir + "/..", s.dir, s.dir + "/io"} {
		if st, err := os.Stat(dir); err == nil && st.Mode()&0o011 != 0o011 {
			if err := os.Chmod(dir, st.Mode().Perm()|0o011); err != nil {
				return failed("supervisor: logs", err)
			}
		}
	}
	return nil
}

// read makes the stream read r from now on, once what it read before is on file.
func (st *stream) read(r io.ReadCloser) {
	before := st.done
	if st.pump != nil {
		st.pump.Close()
	}
	st.rot = logmon.NewRotator(st.files)
	path := st.path
	st.pump = logmon.NewPump(r, st.rot, func(msg string) { println("supervisor:", path+":", msg) })
	done, pump := make(chan struct{}), st.pump
	st.done = done
	go func() {
		defer close(done)
		if before != nil {
			<-before
		}
		pump.Run()
	}()
}

// end closes the pump, which ends once it has all that is in the pipe now.
func (st *stream) end() {
	st.pump.Close()
	_ = syscall.Close(st.keep)
}

// closePumps brings what is in the FIFOs to file and leaves them to the next
// supervisor.
func (s *server) closePumps() {
	s.mu.Lock()
	var all []chan struct{}
	for _, p := range s.pairs {
		for _, st := range p.streams {
			st.pump.Close()
			all = append(all, st.done)
		}
	}
	s.mu.Unlock()
	for _, done := range all {
		<-done
	}
}

// endLogs brings what is in a pair to file and removes it.
func (s *server) endLogs(name string) {
	s.mu.Lock()
	p := s.pairs[name]
	if p == nil || p.gone != nil {
		s.mu.Unlock()
		if p != nil {
			<-p.gone
		}
		return
	}
	p.gone = make(chan struct{})
	s.mu.Unlock()
	for _, st := range p.streams {
		st.end()
		_ = os.Remove(st.path)
	}
	for _, st := range p.streams {
		<-st.done
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pairs, name)
	for _, st := range p.streams {
		delete(s.streams, st.path)
	}
	close(p.gone)
	if err := s.note(line("E", name)); err != nil {
		println(err.Error())
	}
	s.emptyJournal()
}

// streamsOf returns the streams of ours that the task writes to. Called with the
// lock held.
func (s *server) streamsOf(t *task) (l []*stream) {
	for i, path := range []string{t.spec.Stdout, t.spec.Stderr} {
		if path == "" || i == 1 && path == t.spec.Stdout {
			continue
		}
		if st := s.streams[path]; st != nil {
			l = append(l, st)
		}
	}
	return l
}

// follow finds the pipes of a process that is being adopted by proof. One that
// has lost its name is reached through the process alone. Called with the lock
// held.
func (s *server) follow(t *task) {
	for i, path := range []string{t.spec.Stdout, t.spec.Stderr} {
		if path == "" || i == 1 && path == t.spec.Stdout {
			continue
		}
		link := "/proc/" + itoa(t.st.PID) + "/fd/" + itoa(i+1)
		if to, err := os.Readlink(link); err != nil || to != path+" (deleted)" {
			continue
		}
		fd, err := syscall.Open(link, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
		if err != nil {
			println("supervisor: output of", t.spec.ID+":", err.Error())
			continue
		}
		f := os.NewFile(uintptr(fd), path)
		if st := s.streams[path]; st != nil {
			st.away = true
			st.read(f)
		} else {
			s.orphans[path] = f
		}
	}
}

// restoreStreams lets the streams of a task that is over read their FIFOs again.
// Called with the lock held.
func (s *server) restoreStreams(t *task) {
	for _, path := range []string{t.spec.Stdout, t.spec.Stderr} {
		if f := s.orphans[path]; f != nil {
			_ = f.Close()
			delete(s.orphans, path)
		}
	}
	for _, st := range s.streamsOf(t) {
		if !st.away {
			continue
		}
		r, err := logmon.OpenReader(st.path)
		if err != nil {
			println("supervisor:", err.Error())
			continue
		}
		st.away = false
		st.read(r)
	}
}
