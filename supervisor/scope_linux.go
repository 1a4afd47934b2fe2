// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"
)

const (
	repeats      = 5 // of a call whose connection ended and that is safe to repeat
	firstBackoff = 10 * time.Millisecond
	lastBackoff  = 10 * time.Second
	shortLife    = time.Second // of a connection that counts as a failure
)

// Scope is one supervisor and its tasks, as an agent sees them. The first call
// connects, starting the supervisor if there is none. From then on the scope
// stays connected until Release or Pool.Close: when the supervisor ends the next
// one is started at once, adopts the tasks, and is told what it should know and
// does not.
//
// All methods may be called from any goroutine and block until the supervisor
// has answered or ctx ends; a call that ctx ended may still be carried out. What
// is safe to repeat is repeated when the connection ends in the middle of it.
type Scope struct {
	pool      *Pool
	name, dir string
	invalid   error

	mu    sync.Mutex
	stop  chan struct{}       // closed by Release and Pool.Close
	over  bool                // stop is closed
	c     *client             // nil while there is no connection
	dial  *dialing            // the attempt under way, if any
	dials int                 // attempts that were begun
	short int                 // connections in a row that lived shortly
	tasks map[string]Identity // what the supervisor should know
	logs  map[string]*held
	waits map[string]*call // one outstanding Wait per task, whoever waits
	execs map[*client]bool // connections of sessions
}

// dialing is one attempt to connect; err is valid once done is closed.
type dialing struct {
	done chan struct{}
	err  error
}

func newScope(p *Pool, name string) *Scope {
	s := &Scope{
		pool: p, name: name, dir: p.cfg.Dir + "/" + escapeName(name), stop: make(chan struct{}),
		tasks: map[string]Identity{}, logs: map[string]*held{}, waits: map[string]*call{},
		execs: map[*client]bool{},
	}
	if name == "" || len(escapeName(name)) > maxName {
		s.invalid = errors.New("supervisor: scope name " + quote(name) + " must have 1 to " + itoa(maxName) + " bytes")
	}
	return s
}

// connected returns the connection, making one if there is none.
func (s *Scope) connected(ctx context.Context) (*client, error) {
	if s.invalid != nil {
		return nil, s.invalid
	}
	for {
		c, d := s.begin()
		if c != nil {
			return c, nil
		}
		select {
		case <-d.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if d.err != nil {
			return nil, d.err
		}
	}
}

// begin returns the connection or the attempt to make one, begun if need be.
func (s *Scope) begin() (*client, *dialing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c != nil && !s.c.ended() {
		return s.c, nil
	}
	d := s.dial
	if d == nil {
		d = &dialing{done: make(chan struct{})}
		if !s.over && s.pool.spawn(func() { s.attempt(d) }) {
			s.dial = d
			s.dials++
		} else {
			d.err = ErrClosed
			close(d.done)
		}
	}
	return nil, d
}

func (s *Scope) attempt(d *dialing) {
	c, err := s.ensure()
	if err == nil {
		err = s.teach(c)
	}
	s.mu.Lock()
	switch {
	case err != nil:
	case s.over, c.ended():
		err = ErrClosed
	default:
		s.c, c.used = c, true
	}
	s.dial, d.err = nil, err
	s.mu.Unlock()
	if err != nil && c != nil {
		c.close()
	}
	close(d.done)
}

// open makes a client of a connected socket and reads from it in the background.
func (s *Scope) open(c *client) (*client, error) {
	if !s.pool.spawn(func() { c.run(); s.lost(c) }) {
		c.close()
		return nil, ErrClosed
	}
	return c, nil
}

// lost is called when a connection has ended.
func (s *Scope) lost(c *client) {
	s.mu.Lock()
	again := c.used && !s.over
	if s.c == c {
		s.c = nil
	}
	if time.Since(c.since) < shortLife {
		s.short++
	} else {
		s.short = 0
	}
	short := s.short
	s.mu.Unlock()
	if again {
		s.warnEnd()
		s.pool.spawn(func() { s.reconnect(short) })
	}
}

// reconnect tries until it is connected or not wanted any more: at once, but
// later and later if connections keep ending soon.
func (s *Scope) reconnect(short int) {
	told := ""
	pause := firstBackoff
	if short > 1 {
		pause = min(firstBackoff<<min(short, 16), lastBackoff)
		if !s.sleep(pause) {
			return
		}
	}
	for ; ; pause = min(2*pause, lastBackoff) {
		c, d := s.begin()
		if c != nil {
			return
		}
		<-d.done
		if d.err == nil {
			return
		}
		if text := d.err.Error(); text != told && !errors.Is(d.err, ErrClosed) {
			told = text
			s.pool.cfg.Warn("scope " + s.name + ": no supervisor, trying again: " + text)
		}
		if !s.sleep(pause) {
			return
		}
	}
}

// sleep waits, and says false if the scope has ended meanwhile.
func (s *Scope) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-s.stop:
		return false
	case <-t.C:
		return true
	}
}

// teach tells a supervisor what this scope knows and it does not: one that found
// no journal, because the directory was removed. Usually it knows all.
func (s *Scope) teach(c *client) error {
	s.mu.Lock()
	tasks, logs := make([]Identity, 0, len(s.tasks)), make([]LogSpec, 0, len(s.logs))
	for _, i := range s.tasks {
		tasks = append(tasks, i)
	}
	for _, h := range s.logs {
		logs = append(logs, h.spec)
	}
	s.mu.Unlock()
	for _, l := range logs {
		r, err := c.send(kLogs, l.encode).answer(s.stop)
		if errors.Is(err, ErrClosed) {
			return err
		}
		if err != nil {
			s.pool.cfg.Warn("scope " + s.name + ": logs of " + l.ID + ": " + err.Error())
			continue
		}
		s.hold(l, r, false)
	}
	for _, i := range tasks {
		_, err := c.send(kAdopt, i.encode).answer(s.stop)
		if errors.Is(err, ErrClosed) {
			return err
		}
		if err != nil {
			s.pool.cfg.Warn("scope " + s.name + ": task " + i.ID + " is lost: " + err.Error())
			s.forget(i.ID)
		}
	}
	return nil
}

func (s *Scope) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tasks, id)
	delete(s.waits, id)
}

func (s *Scope) know(sp Identity, st Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp.PID, sp.Start, sp.BootID = st.PID, st.Start, st.BootID
	s.tasks[sp.ID] = sp
}

// detachAfter detaches unless an attempt to connect was begun after that many: it
// may have made the directory anew.
func (s *Scope) detachAfter(dials int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dials != dials {
		return false
	}
	s.end()
	return true
}

// detach ends the connection and all calls, for good.
func (s *Scope) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
}

func (s *Scope) end() {
	if s.over {
		return
	}
	s.over = true
	close(s.stop)
	for id, h := range s.logs {
		h.close()
		delete(s.logs, id)
	}
	if s.c != nil {
		s.c.close()
	}
	for c := range s.execs {
		c.close()
	}
}

func (s *Scope) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// do makes a call, again if the connection ended and the call may be repeated, or
// was not made yet.
func (s *Scope) do(ctx context.Context, kind uint8, repeat bool, fill func(*enc)) (r reply, try int, err error) {
	for ; ; try++ {
		c, err := s.connected(ctx)
		if err == nil {
			r, err = c.send(kind, fill).await(ctx, s.stop)
		}
		if !errors.Is(err, ErrClosed) || s.isOver() {
			return r, try, err
		}
		if c != nil && !repeat || try >= repeats {
			return reply{}, try, s.withLog(err)
		}
		if c != nil {
			<-c.end // soon, and then the next one is connected to
		}
	}
}

func naming(id string) func(*enc) { return func(e *enc) { e.str(tTask, id) } }

// Hello returns the supervisor's protocol version and pid.
func (s *Scope) Hello(ctx context.Context) (version, pid int, err error) {
	r, _, err := s.do(ctx, kHello, true, nil)
	return r.version, r.pid, err
}

// StateRoot is the directory that a creator's state directories are in, removed with
// the scope. It is there from the first container on.
func (s *Scope) StateRoot() string { return s.dir + containers }

// Start starts a task, or returns the one of that ID, running or ended. A start
// that failed leaves nothing and may be tried again; errors.Is finds the cause
// (fs.ErrNotExist for a missing program).
func (s *Scope) Start(ctx context.Context, sp Spec) (Status, error) {
	kind := kStart
	switch {
	case sp.Container != nil && sp.ID != "" && sp.Container.Creator != "":
		kind = kContain
	case sp.Container != nil || sp.ID == "" || sp.Path == "":
		return Status{}, errors.New("supervisor: Spec.ID and Spec.Path, or Container.Creator, must not be empty")
	}
	r, _, err := s.do(ctx, kind, true, sp.encode)
	st, err := one(r, err, sp.ID)
	if err == nil {
		s.know(Identity{ID: sp.ID, Cgroup: sp.Cgroup, Stdout: sp.Stdout, Stderr: sp.Stderr, ExitDir: sp.ExitDir, Isolated: sp.Container != nil}, st)
	}
	return st, err
}

// Adopt makes a task known that an earlier supervisor of the scope started, or
// returns it if it is known already; it is what a restarted agent asks first.
// Without a journal the process itself is the proof: pid, start time and boot id
// must match, or the record in ExitDir. Otherwise it is ErrNotProved, nothing is
// touched, and nothing of that identity lives but what may be left in Cgroup.
func (s *Scope) Adopt(ctx context.Context, i Identity) (Status, error) {
	if i.ID == "" || i.PID <= 0 || i.Start == 0 || i.BootID == "" {
		return Status{}, errors.New("supervisor: Identity.ID, PID, Start and BootID must all be given")
	}
	r, _, err := s.do(ctx, kAdopt, true, i.encode)
	st, err := one(r, err, i.ID)
	if err == nil && (st.PID != i.PID || st.Start != i.Start || st.BootID != i.BootID) {
		return Status{}, failed("adopt "+i.ID+": the supervisor's task has pid "+itoa(st.PID)+", not "+itoa(i.PID), ErrNotProved)
	}
	if err == nil {
		s.know(i, st)
	}
	if err == nil && st.OutputLost {
		s.pool.cfg.Warn("scope " + s.name + ": task " + i.ID + " ended while neither agent nor supervisor was there: its last output may be lost")
	}
	return st, err
}

// Wait returns when the task has exited and all its main process wrote is on
// file. Any number may wait, before and after the exit, until Destroy. It goes
// on when the supervisor dies and is replaced.
func (s *Scope) Wait(ctx context.Context, id string) (Status, error) {
	pause := firstBackoff
	for {
		asked := time.Now()
		k, err := s.waiting(ctx, id)
		if err == nil {
			var r reply
			r, err = k.await(ctx, s.stop)
			st, serr := one(r, err, id)
			if serr == nil && !st.Exited {
				return Status{}, errors.New("supervisor: task " + quote(id) + " was reported as ended but runs")
			}
			if !errors.Is(err, ErrClosed) {
				s.answered(id, k)
				return st, serr
			}
			if time.Since(asked) > shortLife {
				pause = firstBackoff
			}
		}
		s.mu.Lock()
		_, known := s.tasks[id]
		over := s.over
		s.mu.Unlock()
		if over {
			return Status{}, ErrClosed
		}
		if ctx.Err() != nil {
			return Status{}, context.Cause(ctx)
		}
		if !known && !errors.Is(err, ErrClosed) || errors.Is(err, ErrForeignScope) {
			return Status{}, err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
		case <-s.stop:
		}
		t.Stop()
		pause = min(2*pause, time.Second)
	}
}

// waiting returns the one outstanding Wait for the task, sent if need be.
func (s *Scope) waiting(ctx context.Context, id string) (*call, error) {
	c, err := s.connected(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	k := s.waits[id]
	s.mu.Unlock()
	if k != nil {
		select {
		case <-k.done: // an old answer: ask again
		default:
			return k, nil
		}
	}
	k = c.send(kWait, naming(id))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits[id] = k
	return k, nil
}

// Signal sends sig to the main process. A task that has ended is no error. With
// ErrClosed the signal was sent or was not; it is never sent twice.
func (s *Scope) Signal(ctx context.Context, id string, sig syscall.Signal) error {
	_, _, err := s.do(ctx, kSignal, false, func(e *enc) { e.str(tTask, id).num(tSignal, int64(sig)) })
	return err
}

// Stop sends sig to the main process and, after grace, SIGKILL to everything of
// the task. It does not wait for the exit. The supervisor keeps the time, so the
// kill comes also when the agent is gone; a second Stop can only shorten it. A
// task that has ended is no error.
func (s *Scope) Stop(ctx context.Context, id string, sig syscall.Signal, grace time.Duration) error {
	_, _, err := s.do(ctx, kStop, true, func(e *enc) {
		e.str(tTask, id).num(tSignal, int64(sig)).num(tGrace, int64(max(grace, 0)))
	})
	return err
}

// answered drops a Wait that is over.
func (s *Scope) answered(id string, k *call) {
	select {
	case <-k.done:
	default: // only its waiter's ctx ended
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waits[id] == k {
		delete(s.waits, id)
	}
}

// List returns all tasks the supervisor remembers.
func (s *Scope) List(ctx context.Context) ([]Status, error) {
	r, _, err := s.do(ctx, kList, true, nil)
	return r.statuses, err
}

// Lookup returns one task, or ErrNotFound.
func (s *Scope) Lookup(ctx context.Context, id string) (Status, error) {
	r, _, err := s.do(ctx, kList, true, naming(id))
	if err != nil {
		return Status{}, err
	}
	for _, st := range r.statuses { // an older supervisor may list all
		if st.ID == id {
			return st, nil
		}
	}
	return Status{}, ErrNotFound
}

// Destroy acknowledges the exit, ends whatever is left of the task in its cgroup
// or by its mark, removes the cgroup and forgets the task. ErrNotFound proves
// nothing about processes: Adopt first. The FIFOs stay, for the next attempt.
func (s *Scope) Destroy(ctx context.Context, id string) error {
	_, try, err := s.do(ctx, kDestroy, true, naming(id))
	if try > 0 && errors.Is(err, ErrNotFound) {
		err = nil // done before the connection ended
	}
	if err == nil {
		s.forget(id)
	}
	return err
}

// Logs makes the FIFO pair of a task and returns the paths, for Spec.Stdout and
// Spec.Stderr or for whoever else starts the task. Whoever writes next is read.
// The pair lives over all attempts of the task until EndLogs; asking again
// returns the same paths and takes over new sizes.
func (s *Scope) Logs(ctx context.Context, l LogSpec) (stdout, stderr string, err error) {
	if l.Task == "" || l.Dir == "" || l.Dir[0] != '/' {
		return "", "", errors.New("supervisor: LogSpec.Task and an absolute LogSpec.Dir must be given")
	}
	if l.ID == "" {
		l.ID = l.Task
	}
	r, _, err := s.do(ctx, kLogs, true, l.encode)
	if err == nil && (r.stdout == "" || r.stderr == "") {
		err = errors.New("supervisor: the answer names no FIFOs")
	}
	if err != nil {
		return "", "", err
	}
	s.hold(l, r, true)
	return r.stdout, r.stderr, nil
}

// EndLogs brings what is still in the pair of that LogSpec.ID to the files and
// removes it. One that is not there is no error.
func (s *Scope) EndLogs(ctx context.Context, id string) error {
	_, _, err := s.do(ctx, kEndLogs, true, naming(id))
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if h := s.logs[id]; h != nil {
			h.close()
			delete(s.logs, id)
		}
	}
	return err
}

// held is a pair this scope asked for. We keep both FIFOs open and never read:
// what is in them outlives a task that ends and a supervisor that dies before it
// could read, and a writer of another program meets no SIGPIPE.
type held struct {
	spec LogSpec
	fds  [2]int
}

func (h *held) close() {
	for _, fd := range h.fds {
		if fd >= 0 {
			_ = syscall.Close(fd)
		}
	}
}

// hold opens the FIFOs of an answer to Logs in place of those held before; fresh
// false is for pairs that may have been ended meanwhile. An agent without
// descriptors to spare goes without.
func (s *Scope) hold(l LogSpec, r reply, fresh bool) {
	h := &held{spec: l}
	for i, path := range []string{r.stdout, r.stderr} {
		fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_NONBLOCK|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
		var st syscall.Stat_t
		if err == nil && (syscall.Fstat(fd, &st) != nil || st.Mode&syscall.S_IFMT != syscall.S_IFIFO) {
			_ = syscall.Close(fd)
			err = syscall.EINVAL
		}
		if h.fds[i] = fd; err != nil {
			h.fds[i] = -1
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.logs[l.ID]
	if s.over || old == nil && !fresh {
		h.close()
		return
	}
	if old != nil {
		old.close()
	}
	s.logs[l.ID] = h
}
