// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// OpenConfig says which file to open and how.
type OpenConfig struct {
	// Path of the file. It is made if it does not exist, as is its directory
	// with mode 0700. The file has mode 0600; a wider one is narrowed.
	Path string
	// Timeout is how long to wait for another agent to let go of the file. 0
	// means 5 s.
	Timeout time.Duration
	// Warn hears what an operator should know and no caller is told: a
	// compaction that failed, a backup that was taken, a file opened again after
	// an error. It is called with key-value pairs, from any goroutine, and fits
	// hclog.Logger's Warn. Nil: nobody hears it.
	Warn func(msg string, args ...any)
}

const (
	lockPoll   = 50 * time.Millisecond
	mapSize    = 1 << 30 // address space, not memory; beyond it a View may delay an Update
	growBy     = 1 << 20
	compactMin = 16 << 20
)

func (c OpenConfig) validate() error {
	var errs []error
	if c.Path == "" {
		errs = append(errs, errors.New("state: Path: missing"))
	}
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("state: Timeout: %s is negative", c.Timeout))
	}
	return errors.Join(errs...)
}

// Open opens or makes the store in a file. It fails with ErrLocked while another
// agent has it, ErrTooNew if a later version wrote it, ErrCorruptStore if it is
// damaged; the file is then as it was. Close it, or the lock stays.
func Open(cfg OpenConfig) (Store, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	if cfg.Warn == nil {
		cfg.Warn = func(string, ...any) {}
	}
	s := &bolt{cfg: cfg, reqs: make(chan *request), closing: make(chan struct{}), stopped: make(chan struct{})}
	if err := os.MkdirAll(filepath.Dir(cfg.Path), 0o700); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	var err error
	if s.lock, err = lockFile(cfg.Path+".lock", cfg.Timeout); err != nil {
		return nil, err
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.lock.Close())
	}
	go s.write()
	return s, nil
}

// acquire read-locks mu with a usable db behind it.
func (s *bolt) acquire() error {
	for {
		s.mu.RLock()
		if s.db != nil && s.broken.Load() == nil {
			return nil
		}
		s.mu.RUnlock()
		if err := s.revive(); err != nil {
			return err
		}
	}
}

// revive opens the file again after a fault.
func (s *bolt) revive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return ErrClosed
	}
	if f := s.broken.Swap(nil); f != nil && s.db != nil {
		if err := s.release(f.stuck); err != nil {
			s.cfg.Warn("closing the state file failed", "path", s.cfg.Path, "error", err)
		}
	}
	if s.db != nil {
		return nil
	}
	return s.open()
}

// release closes db. One whose locks are stuck is left behind without its file.
func (s *bolt) release(stuck bool) error {
	db := s.db
	s.db = nil
	if stuck {
		return s.file.Close()
	}
	return contained(db.Close)
}

// open opens the file and sets db. mu is held, or nobody else is there.
func (s *bolt) open() (err error) {
	opts := &bbolt.Options{
		Timeout:         time.Second,
		FreelistType:    bbolt.FreelistMapType,
		InitialMmapSize: mapSize,
		NoStatistics:    true,
		OpenFile: func(name string, flag int, perm os.FileMode) (*os.File, error) {
			s.file, err = os.OpenFile(name, flag, perm)
			return s.file, err
		},
	}
	if runtime.GOOS == "windows" || strconv.IntSize == 32 {
		opts.InitialMmapSize = 0
	}
	err = contained(func() (err error) {
		s.db, err = bbolt.Open(s.cfg.Path, 0o600, opts)
		return err
	})
	if err == nil {
		s.db.AllocSize = growBy
		return nil
	}
	if s.file != nil {
		_ = s.file.Close() // bbolt closed it, unless it panicked
	}
	s.db = nil
	if errors.Is(err, berrors.ErrTimeout) {
		return fmt.Errorf("%w: %s", ErrLocked, s.cfg.Path)
	}
	return fmt.Errorf("%w: %s: %w", ErrCommit, s.cfg.Path, err)
}

// uncommitted is called when a commit failed.
func (s *bolt) uncommitted(err error) error {
	f := (*fault)(nil)
	if errors.As(err, &f) {
		return f
	}
	s.broken.Store(&fault{reason: err})
	return fmt.Errorf("%w: %s: %w", ErrCommit, s.cfg.Path, err)
}

// diagnose finds out what a fault was by opening the file again.
func (s *bolt) diagnose(f *fault) error {
	s.broken.Store(f)
	if err := s.acquire(); err != nil {
		return err
	}
	s.mu.RUnlock()
	return fmt.Errorf("%w: %s: %w", ErrCommit, s.cfg.Path, f)
}

func (s *bolt) Close() error {
	if s.closed.Swap(true) {
		return ErrClosed
	}
	close(s.closing)
	<-s.stopped
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.db != nil {
		f := s.broken.Load()
		err = s.release(f != nil && f.stuck)
	}
	if err = errors.Join(err, s.lock.Close()); err != nil {
		return fmt.Errorf("state: close %s: %w", s.cfg.Path, err)
	}
	return nil
}

// lockFile takes the lock of a store. The file stays when it is let go.
func lockFile(path string, timeout time.Duration) (*os.File, error) {
	deadline := time.Now().Add(timeout)
	for {
		f, err := tryLock(path)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, errBusy) {
			return nil, fmt.Errorf("state: %w", err)
		}
		if !time.Now().Before(deadline) {
			return nil, fmt.Errorf("%w: %s%s; stop that one, or give this one another directory", ErrLocked, path, holder(path))
		}
		time.Sleep(lockPoll)
	}
}

// errBusy: somebody else has the lock.
var errBusy = errors.New("locked")

// holder says who wrote the lock file, for a message.
func holder(path string) string {
	b, err := os.ReadFile(path)
	if pid, perr := strconv.Atoi(string(b)); err == nil && perr == nil {
		return fmt.Sprintf(" (pid %d)", pid)
	}
	return ""
}
