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
	// Sealer encrypts the values; names stay in clear. Nil: nothing does. A file
	// that was sealed once opens with this sealer only; of one that was not, each
	// value is sealed when it is next written.
	Sealer Sealer
}

// Sealer encrypts and decrypts values, and finds out if they were changed. Both
// methods are called inside transactions, from any goroutine. They return what
// the store copies.
type Sealer interface {
	Seal(plain []byte) ([]byte, error)
	// Unseal fails on all that Seal did not return.
	Unseal(sealed []byte) ([]byte, error)
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
	s, err := open(cfg, steps)
	if err != nil {
		return nil, err // not a nil *bolt
	}
	return s, nil
}

func open(cfg OpenConfig, steps []step) (*bolt, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	if cfg.Warn == nil {
		cfg.Warn = func(string, ...any) {}
	}
	s := &bolt{
		cfg: cfg, steps: steps,
		reqs: make(chan *request), closing: make(chan struct{}), stopped: make(chan struct{}),
	}
	if err := os.MkdirAll(filepath.Dir(cfg.Path), 0o700); err != nil {
		return nil, fmt.Errorf("state: the agent must be able to write there: %w", err)
	}
	var err error
	lockIsNew := !exists(cfg.Path + ".lock")
	if s.lock, err = lockFile(cfg.Path, cfg.Timeout); err != nil {
		return nil, err
	}
	removeCopies(cfg.Path, cfg.Warn)
	isNew := !exists(cfg.Path)
	layout, err := s.prepare()
	if err == nil {
		err = s.open()
	}
	if err == nil {
		err = s.await(layout)
	}
	if err == nil && cfg.Sealer != nil {
		err = contained(func() error { return markSealed(s.db, cfg.Sealer) })
	}
	if err != nil && s.db != nil {
		err = errors.Join(err, s.release())
	}
	if err != nil {
		err = s.explain(err)
		if isNew { // nothing half-made stays; the lock is still ours
			_ = os.Remove(cfg.Path)
			if lockIsNew {
				_ = os.Remove(cfg.Path + ".lock")
			}
		}
		return nil, errors.Join(err, s.lock.Close())
	}
	go s.write()
	return s, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// prepare makes the file, or checks it and brings it to the layout before the
// newest, if it is older. It returns the layout that it has then.
func (s *bolt) prepare() (layout int, err error) {
	path, want := s.cfg.Path, newest(s.steps)
	fi, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return want, create(path, want)
	}
	if err != nil {
		return 0, err
	}
	info, err := inspectFile(path)
	if err != nil {
		return 0, err
	}
	if info.layout > want {
		hint := howToRestore(path)
		if hint != "" {
			hint = ", or go back to the backup: " + hint
		}
		return 0, fmt.Errorf("%w: %s has layout %d, this program knows %d; run the newer program%s", ErrTooNew, path, info.layout, want, hint)
	}
	if info.sealed != nil && !opens(s.cfg.Sealer, info.sealed) {
		return 0, fmt.Errorf("%w: %s: give the key that it was sealed with", ErrSealed, path)
	}
	if runtime.GOOS != "windows" && fi.Mode().Perm()&0o077 != 0 {
		s.cfg.Warn("state file was open to others, is not any more", "path", path, "mode", fi.Mode().Perm())
		if err := os.Chmod(path, 0o600); err != nil {
			return 0, err
		}
	}
	if info.layout < want-1 {
		return want - 1, s.upgrade(info.layout, want-1)
	}
	if free := int64(info.free) * info.pageSize; free >= compactMin && info.free > info.pages/2 {
		if err := compact(path); err != nil {
			s.cfg.Warn("state file could not be compacted, is used as it is", "path", path, "free", free, "error", err)
		}
	}
	return info.layout, nil
}

// inspectFile checks the file without changing it.
func inspectFile(path string) (fileInfo, error) {
	f, err := os.Open(path)
	if err != nil {
		return fileInfo{}, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return fileInfo{}, err
	}
	info, err := inspect(f, fi.Size())
	if err == nil && info.layout == 0 {
		err = damaged("not a state file")
	}
	return info, err
}

// explain makes the error that callers see.
func (s *bolt) explain(err error) error {
	path := s.cfg.Path
	var d damage
	var f *fault
	switch {
	case errors.As(err, &d), errors.As(err, &f):
		hint := howToRestore(path)
		if hint == "" {
			hint = "start without it: the agent then knows no alloc, and ends the tasks it finds that its control plane does not want any more"
		}
		return fmt.Errorf("%w: %s: %w; stop the agent, mv %q %q, then %s", ErrCorruptStore, path, err, path, path+".damaged", hint)
	case errors.Is(err, berrors.ErrTimeout):
		return fmt.Errorf("%w: %s", ErrLocked, path)
	case errors.Is(err, ErrTooNew), errors.Is(err, ErrSealed):
		return err
	}
	return fmt.Errorf("state: open %s: %w", path, err)
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
	if s.db != nil && s.broken.Load() != nil {
		if err := s.release(); err != nil {
			s.cfg.Warn("closing the state file failed", "path", s.cfg.Path, "error", err)
		}
	}
	if s.db != nil {
		return nil
	}
	err := s.settle()
	if err == nil {
		err = s.open()
	}
	if err == nil {
		s.cfg.Warn("state file was opened again", "path", s.cfg.Path)
		return nil
	}
	if err = s.explain(err); errors.Is(err, ErrCorruptStore) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrCommit, err)
}

// settle makes sure that what the file says now is what is on the disk. When the
// fsync of a head failed, the kernel may show a head that the disk has not; the
// pages it speaks of are there, as they were synced before. Writing the heads
// again makes it dirty again, and this fsync tells.
func (s *bolt) settle() error {
	info, err := inspectFile(s.cfg.Path)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(s.cfg.Path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	heads := make([]byte, 2*info.pageSize)
	if _, err = f.ReadAt(heads, 0); err == nil {
		_, err = f.WriteAt(heads, 0)
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// release closes db. One that cannot be closed any more is left behind without
// its file. mu is held.
func (s *bolt) release() error {
	db := s.db
	s.db = nil
	s.broken.Store(nil)
	if s.stuck.Swap(false) {
		return s.file.Close()
	}
	return contained(db.Close)
}

// open opens the file and sets db. mu is held, or nobody else is there.
func (s *bolt) open() error {
	opts := &bbolt.Options{
		Timeout:         time.Second,
		FreelistType:    bbolt.FreelistMapType,
		InitialMmapSize: mapSize,
		NoStatistics:    true,
		OpenFile: func(name string, flag int, perm os.FileMode) (_ *os.File, err error) {
			s.file, err = os.OpenFile(name, flag&^os.O_CREATE, perm) // a lost file is not an empty one
			return s.file, err
		},
	}
	if runtime.GOOS == "windows" || strconv.IntSize == 32 {
		opts.InitialMmapSize = 0
	}
	err := contained(func() (err error) {
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
	return err
}

// diagnose finds out what a fault was by opening the file again.
func (s *bolt) diagnose(f *fault) error {
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
		if p := s.upgrading.Load(); p != nil && s.broken.Load() == nil {
			s.live(p)
		}
		err = s.release()
	}
	if err = errors.Join(err, s.lock.Close()); err != nil {
		return fmt.Errorf("state: close %s: %w", s.cfg.Path, err)
	}
	return nil
}

// lockFile takes the lock of the store at path. The lock file stays when it is let go.
func lockFile(path string, timeout time.Duration) (*os.File, error) {
	deadline := time.Now().Add(timeout)
	for {
		f, err := tryLock(path + ".lock")
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, errBusy) {
			return nil, fmt.Errorf("state: the agent must be able to write there: %w", err)
		}
		if !time.Now().Before(deadline) {
			return nil, fmt.Errorf("%w: %s%s; stop that one, or give this one another directory", ErrLocked, path, holder(path+".lock"))
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
