// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Pool is all scopes below one runtime directory, as one agent sees them. Two
// pools on the same directory, in one process or in two, work beside each other.
// Its methods may be called from any goroutine.
type Pool struct {
	cfg      PoolConfig
	exe      string
	image    *os.File      // of exe, so that its file may be removed; nil for our own
	silence  time.Duration // silenceBound and
	hung     time.Duration // hungBound
	launches chan struct{} // bounds how many supervisors are being started at a time
	closing  chan struct{}
	wg       sync.WaitGroup // what scopes run in the background

	mu     sync.Mutex
	closed bool
	scopes map[string]*Scope
}

// NewPool makes the runtime directory and finds the supervisor's program. It
// starts nothing.
func NewPool(cfg PoolConfig) (*Pool, error) {
	if cfg.Dir == "" || cfg.Dir[0] != '/' {
		return nil, errors.New("supervisor: PoolConfig.Dir must be an absolute path, not " + quote(cfg.Dir))
	}
	cfg.Dir = strings.TrimRight(cfg.Dir, "/")
	if cfg.Warn == nil {
		cfg.Warn = func(string) {}
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, failed("supervisor: make the runtime directory", err)
	}
	if err := checkOwner(cfg.Dir); err != nil {
		return nil, err
	}
	exe, err := program(cfg.Exe)
	if err != nil {
		return nil, err
	}
	var image *os.File
	if exe != ownImage {
		const oPath = 0x200000
		if image, err = os.OpenFile(exe, oPath|syscall.O_CLOEXEC, 0); err != nil {
			return nil, failed("supervisor: program", err)
		}
	}
	return &Pool{
		cfg: cfg, exe: exe, image: image, silence: silenceBound, hung: hungBound, launches: make(chan struct{}, 2*runtime.NumCPU()),
		closing: make(chan struct{}), scopes: map[string]*Scope{},
	}, nil
}

// program finds what to run: the file named, nodekeep-supervisor beside our own
// file, or our own file, which /proc/self/exe means even after an upgrade.
func program(named string) (string, error) {
	if named != "" {
		if st, err := os.Stat(named); err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
			return "", failed("supervisor: PoolConfig.Exe "+quote(named)+" is no program", errors.Join(err, os.ErrInvalid))
		}
		return named, nil
	}
	if own, err := os.Executable(); err == nil {
		beside := own[:strings.LastIndexByte(own, '/')+1] + argv0
		if st, err := os.Stat(beside); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 && beside != own {
			return beside, nil
		}
	}
	return ownImage, nil
}

// ownImage is this program's file, removed or not.
const ownImage = "/proc/self/exe"

// programs are what to try, in turn: what was found at the start, which may have
// lost its name since; a script must be run by its name; this program.
func (p *Pool) programs() []string {
	if p.image == nil {
		return []string{p.exe}
	}
	return []string{"/proc/self/fd/" + itoa(int(p.image.Fd())), p.exe, ownImage}
}

// Scope returns the scope of that name; the same one for the same name, with
// one connection for all its users. It does no I/O: a scope exists once
// something is asked of it. After Release, Scope makes a new one.
func (p *Pool) Scope(name string) *Scope {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.scopes[name]; s != nil {
		return s
	}
	s := newScope(p, name)
	p.scopes[name] = s
	return s
}

func (p *Pool) drop(s *Scope) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.scopes[s.name] == s {
		delete(p.scopes, s.name)
	}
}

// Names returns the scopes that are there on disk, sorted, whoever made them
// and whether or not a supervisor lives.
func (p *Pool) Names() ([]string, error) {
	des, err := os.ReadDir(p.cfg.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, failed("supervisor: list scopes", err)
	}
	var l []string
	for _, e := range des {
		if name, ok := unescapeName(e.Name()); ok && e.IsDir() {
			l = append(l, name)
		}
	}
	return l, nil
}

// Owns says whether a process is a supervisor of one of this pool's scopes,
// whichever agent started it.
func (p *Pool) Owns(pid int) bool { return strings.HasPrefix(serverOf(pid), p.cfg.Dir+"/") }

// Close detaches: it closes all connections and waits for what the pool runs.
// Supervisors and tasks live on. Calls under way and later ones return
// ErrClosed. Idempotent.
func (p *Pool) Close() error {
	p.mu.Lock()
	first := !p.closed
	if p.closed = true; first {
		close(p.closing)
	}
	scopes := p.scopes
	p.scopes = map[string]*Scope{}
	p.mu.Unlock()
	for _, s := range scopes {
		s.detach()
	}
	p.wg.Wait()
	if first && p.image != nil {
		_ = p.image.Close()
	}
	return nil
}

// spawn runs fn in the background unless the pool is closed.
func (p *Pool) spawn(fn func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.wg.Go(fn)
	return true
}

func quote(s string) string { return `"` + s + `"` }
