// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nodekeep/nodekeep/internal/cgroup"
)

const (
	maxQueue     = 8 << 20         // bytes an agent that does not read may be owed
	destroyBound = 5 * time.Second // for a killed task to be reaped
	maxForks     = 2               // launches at a time: forks take turns anyway
	journalLimit = 256 << 10       // bytes
)

// server is one supervisor. Its one lock is held across fork and registration,
// and across reaping and signalling, so no pid it uses can be another's.
type server struct {
	dir  string
	boot string
	kick chan struct{} // a child exists again
	quit chan int
	gates

	mu      sync.Mutex // guards everything below
	jr      *os.File
	written int // bytes of the journal
	limit   int // of those; then it is made anew
	lock    int
	tasks   map[string]*task
	byPID   map[int]child
	pairs   map[string]*pair
	streams map[string]*stream  // of the pairs, by path
	orphans map[string]*os.File // pipes of adopted tasks that lost their names, by path, until Logs
	sock    *os.File
	conns   int
	leaving bool // starts nothing any more
	term    bool // asked to go once nothing runs
	ownAdj  int  // oom_score_adj
}

// gates bound what is done at a time.
type gates struct {
	forks    chan struct{} // of plain tasks and commands
	creators chan struct{} // at work
}

// task is one task from its admission to its Destroy.
type task struct {
	spec    Spec
	groups  []string // its cgroup, in every hierarchy if a creator made it
	mark    uint64
	started chan struct{} // closed once st is final about the start
	done    chan struct{} // closed once st.Exited
	failed  error         // of the start; valid once started is closed

	// Guarded by server.mu.
	st       Status
	res      Status // as reaped, while the logs are being drained
	reaped   bool
	loose    bool // G is in the journal
	pending  int  // streams not drained yet, counted from the exit on
	waiters  []waiter
	killer   *time.Timer
	killAt   int64               // CLOCK_BOOTTIME of killer, ns
	recorded bool                // in ExitDir
	execs    map[uint64]*session // commands that run beside it, by mark
	execN    uint64
}

type waiter struct {
	c  *conn
	id uint32
}

func newServer(dir string) *server {
	return &server{
		dir: dir, boot: bootID(), kick: make(chan struct{}, 1), quit: make(chan int, 1), gates: gates{make(chan struct{}, maxForks), make(chan struct{}, runtime.NumCPU()+1)},
		lock: fdLock, tasks: map[string]*task{}, byPID: map[int]child{}, pairs: map[string]*pair{},
		streams: map[string]*stream{}, orphans: map[string]*os.File{}, ownAdj: readAdj(),
	}
}

func newTask(sp Spec, boot string) *task {
	groups := []string{sp.Cgroup}
	if sp.Container != nil {
		groups = cgroup.Everywhere(sp.Cgroup)
	}
	return &task{spec: sp, groups: groups, st: Status{ID: sp.ID, BootID: boot}, started: make(chan struct{}), done: make(chan struct{})}
}

func (t *task) isStarted() bool {
	select {
	case <-t.started:
		return true
	default:
		return false
	}
}

// conn queues its frames: the reaper must never wait for an agent that does
// not read. A writer runs only while there is something to write.
type conn struct {
	f       *os.File
	mu      sync.Mutex
	queue   []byte
	writing bool
	run     *session // the command it was made for, if it was; of the reading goroutine
}

func (c *conn) send(e *enc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) > maxQueue {
		_ = c.f.Close() // it will connect again and list
		return
	}
	c.queue = append(c.queue, e.done()...)
	if !c.writing {
		c.writing = true
		go c.flush()
	}
}

// errLeaving is never told: the connection ends, and the next supervisor takes
// the request.
var errLeaving = errors.New("supervisor: leaving")

// refuse answers a request that failed.
func (c *conn) refuse(id uint32, err error) {
	if err == errLeaving {
		_ = c.f.Close()
		return
	}
	c.send(newReply(id, err))
}

func (c *conn) flush() {
	for {
		c.mu.Lock()
		b := c.queue
		c.queue = nil
		c.writing = len(b) > 0
		c.mu.Unlock()
		if len(b) == 0 {
			return
		}
		if _, err := c.f.Write(b); err != nil {
			_ = c.f.Close() // ends the reader
			return
		}
	}
}

// listen accepts on l from now on. Called with the lock held.
func (s *server) listen(l *os.File) {
	if s.sock != nil {
		_ = s.sock.Close()
	}
	s.sock = l
	go s.acceptLoop(l)
}

func (s *server) acceptLoop(l *os.File) {
	for {
		f, err := accept(l)
		if err != nil {
			s.mu.Lock()
			old := s.sock != l
			s.mu.Unlock()
			if old { // bound anew
				return
			}
			println("supervisor: accept:", err.Error())
			time.Sleep(100 * time.Millisecond) // out of descriptors or memory
			continue
		}
		s.mu.Lock()
		s.conns++
		s.mu.Unlock()
		go s.converse(&conn{f: f})
	}
}

// converse reads one agent's requests until it is gone.
func (s *server) converse(c *conn) {
	defer s.parted(c)
	var buf []byte
	for {
		b, err := readFrame(c.f, &buf, maxRequest)
		if err != nil {
			return
		}
		r, ok := decodeRequest(b)
		if !ok {
			return
		}
		if cap(buf) > 64<<10 {
			buf = nil
		}
		switch r.kind {
		case kStart, kContain:
			t, first := s.admit(r.spec)
			if t == nil {
				return
			}
			go s.start(c, r.id, t, first)
		case kExec, kExecIn, kExecWait, kHangup:
			s.handleExec(c, r)
		default:
			s.handle(c, r)
		}
	}
}

func (s *server) parted(c *conn) {
	_ = c.f.Close()
	if c.run != nil {
		s.hangUp(c.run)
	}
	s.mu.Lock()
	s.conns--
	for _, t := range s.tasks {
		t.waiters = slices.DeleteFunc(t.waiters, func(w waiter) bool { return w.c == c })
	}
	for _, t := range s.tasks {
		s.recordExit(t)
	}
	s.mu.Unlock()
	s.quitIfIdle()
}

// handle answers everything but Start. What may take long answers later.
func (s *server) handle(c *conn, r request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tasks[r.spec.ID]
	if t == nil && (r.kind == kWait || r.kind == kSignal || r.kind == kStop || r.kind == kDestroy) {
		c.send(newReply(r.id, ErrNotFound))
		return
	}
	if t != nil && (r.kind == kSignal || r.kind == kStop || r.kind == kList) && !t.isStarted() {
		go func() { <-t.started; s.handle(c, r) }()
		return
	}
	if s.leaving && (r.kind == kHello || r.kind == kAdopt || r.kind == kLogs) {
		_ = c.f.Close() // the next supervisor takes it
		return
	}
	switch r.kind {
	case kHello:
		c.send(newReply(r.id, nil).num(tVersion, Version).num(tPID, int64(os.Getpid())))
	case kWait:
		if t.st.Exited {
			c.send(about(r.id, t.st))
			return
		}
		t.waiters = append(t.waiters, waiter{c, r.id})
	case kSignal:
		c.send(newReply(r.id, s.signal(t, r.signal)))
	case kStop:
		c.send(newReply(r.id, s.stop(t, r.signal, r.grace)))
	case kList:
		e := newReply(r.id, nil)
		for _, t := range s.tasks {
			if (t.st.PID != 0 || t.st.Exited) && (t.spec.Container == nil || t.isStarted()) && (r.spec.ID == "" || r.spec.ID == t.spec.ID) {
				t.st.encode(e)
			}
		}
		c.send(e)
	case kDestroy:
		go func() { c.send(newReply(r.id, s.destroy(t))) }()
	case kAdopt:
		go s.answerAdopt(c, r)
	case kLogs:
		go s.answerLogs(c, r)
	case kEndLogs:
		go func() {
			s.endLogs(r.spec.ID)
			c.send(newReply(r.id, nil))
			s.quitIfIdle()
		}()
	case kShutdown:
		if n := len(s.tasks); n > 0 {
			c.send(newReply(r.id, failed("supervisor: "+itoa(n)+" tasks", ErrBusy)))
			return
		}
		c.send(newReply(r.id, nil))
		s.leave()
	default:
		c.send(newReply(r.id, failed("supervisor: request "+itoa(int(r.kind)), ErrUnsupported)))
	}
}

// about is an answer that tells of one task.
func about(id uint32, st Status) *enc {
	e := newReply(id, nil)
	st.encode(e)
	return e
}

// quitIfIdle ends a supervisor that holds nothing and serves nobody, or that was
// asked to go and has nothing running: then the journal stays.
func (s *server) quitIfIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == 0 && len(s.tasks) == 0 && len(s.pairs) == 0 {
		s.leave()
		return
	}
	if !s.term || s.leaving {
		return
	}
	for _, t := range s.tasks {
		if !t.st.Exited {
			return
		}
	}
	s.leaving = true
	go func() {
		s.closePumps()
		s.exit()
	}()
}

// leave ends a supervisor without tasks and removes the scope. Called with the
// lock held.
func (s *server) leave() {
	if s.leaving {
		return
	}
	s.leaving = true
	go func() {
		s.mu.Lock()
		var names []string
		for n := range s.pairs {
			names = append(names, n)
		}
		s.mu.Unlock()
		for _, n := range names {
			s.endLogs(n)
		}
		if s.ours() {
			if err := removeScope(s.dir); err != nil {
				println("supervisor:", err.Error())
			}
		}
		s.exit()
	}()
}

func (s *server) exit() {
	select {
	case s.quit <- 0:
	default:
	}
}

// ours says whether the scope's name still leads to the lock we hold.
func (s *server) ours() bool {
	var held, named syscall.Stat_t
	return syscall.Fstat(s.lock, &held) == nil && syscall.Lstat(s.dir+"/lock", &named) == nil &&
		held.Ino == named.Ino && held.Dev == named.Dev
}

// note writes one fact to the journal. Called with the lock held.
func (s *server) note(l []byte) error {
	if s.written > s.limit {
		if err := s.renewJournal(); err != nil {
			println("supervisor: journal:", err.Error())
		}
	}
	n, err := s.jr.Write(l)
	s.written += n
	if err != nil {
		_, _ = s.jr.Write([]byte("\n")) // whatever was cut short ends here
		return failed("supervisor: journal", err)
	}
	return nil
}

// emptyJournal empties the journal once nothing in it is true any more. Called
// with the lock held.
func (s *server) emptyJournal() {
	if len(s.tasks) > 0 || len(s.pairs) > 0 {
		return
	}
	if err := s.jr.Truncate(0); err != nil {
		println("supervisor: journal:", err.Error())
	}
	s.written = 0
}

// snapshot is the journal as it would be if it held only what is still true.
func (s *server) snapshot() (b []byte) {
	for _, t := range s.tasks {
		r := record{spec: t.spec, loose: t.loose, mark: t.mark, killAt: t.killAt, st: t.st}
		b = append(b, r.lines()...)
		for _, x := range t.execs {
			b = append(b, x.line()...)
		}
	}
	for _, p := range s.pairs {
		b = append(b, logLine(p.spec)...)
	}
	return b
}

// renewJournal makes the journal anew. Called with the lock held.
func (s *server) renewJournal() error {
	name := s.dir + "/journal"
	f, err := os.OpenFile(name+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	b := s.snapshot()
	if _, err = f.Write(b); err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		_ = f.Close()
		return err
	}
	if s.jr != nil {
		_ = s.jr.Close()
	}
	s.jr, s.written, s.limit = f, len(b), max(journalLimit, 4*len(b))
	return nil
}
