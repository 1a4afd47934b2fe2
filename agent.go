// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/hooks/core"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/internal/datadir"
	"github.com/nodekeep/nodekeep/outbox"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/supervisor"
	"github.com/nodekeep/nodekeep/taskenv"
)

var (
	// ErrNoAlloc says that the agent knows no alloc of that id.
	ErrNoAlloc = errors.New("nodekeep: no such alloc")
	// ErrClosed says that the agent has ended (Run returned, or Close was called).
	ErrClosed = errors.New("nodekeep: the agent has ended")
)

// Agent runs allocs on this machine. Make it with New, then call Run. All other
// methods may be called from any goroutine.
type Agent struct {
	cfg      Config
	log      hclog.Logger
	store    state.Store
	pool     *supervisor.Pool
	tree     *cgroup.Tree // nil without cgroups
	drivers  *drivers
	devices  *devicemanager.Manager
	users    *core.Users // made by load
	box      *outbox.Box
	host     map[string]string
	id       identity
	lock     *os.File // of the runtime directory
	changed  *bell
	private  string
	runnerOf runners

	begun  atomic.Bool
	loaded chan struct{} // all records are known; Apply may go on
	ready  chan struct{}
	ended  chan struct{}
	wake   chan struct{} // 1-buffered: the collector looks again
}

// runners is what changes while the agent lives.
type runners struct {
	applying chan struct{} // 1-buffered: one Apply at a time
	contact  chan struct{} // closed by the first Apply
	starting chan []*entry // from Apply to Run: on disk, to be launched
	leaving  chan struct{} // closed when Run takes no more of them
	wg       sync.WaitGroup

	mu       sync.Mutex // guards what follows; never held while anything blocks
	progress progress
	entries  map[string]*entry
	gone     map[string]tombstone
	listed   map[string]bool // in the last desired list; nil before the first
}

// New locks and opens the state below cfg.DataDir and makes the drivers. It runs
// nothing. A faulty cfg is a joined list of ConfigError; a directory that another
// agent uses is state.ErrLocked within 6 s, a runtime directory RuntimeDirError; a damaged state file is
// state.ErrCorruptStore, a newer one state.ErrTooNew. A first start that fails leaves
// nothing in DataDir that was not there. Whoever does not call Run calls Close.
func New(cfg Config) (*Agent, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	undo, err := datadir.Make(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("nodekeep: the data directory must be writable: %w", err)
	}
	a, err := open(cfg)
	if err != nil {
		undo()
		return nil, err
	}
	return a, nil
}

// open makes the agent in its data directory.
func open(cfg Config) (*Agent, error) {
	discard := firstStart(cfg.DataDir)
	store, err := state.Open(state.OpenConfig{Path: filepath.Join(cfg.DataDir, "state.db"), Warn: cfg.Log.Named("state").Warn})
	if err != nil {
		return nil, err
	}
	a := &Agent{
		cfg: cfg, log: cfg.Log, store: store, changed: newBell(),
		host:   taskenv.FilterHost(os.Environ(), cfg.HostEnv),
		loaded: make(chan struct{}), ready: make(chan struct{}), ended: make(chan struct{}), wake: make(chan struct{}, 1),
		runnerOf: runners{applying: make(chan struct{}, 1), contact: make(chan struct{}),
			starting: make(chan []*entry), leaving: make(chan struct{}),
			entries: map[string]*entry{}, gone: map[string]tombstone{}},
	}
	a.box = a.newBox()
	if err := a.assemble(); err != nil {
		discard() // while the lock is ours
		return nil, errors.Join(err, a.release())
	}
	return a, nil
}

// assemble makes what New makes besides the store.
func (a *Agent) assemble() (err error) {
	if err := a.identify(); err != nil {
		return err
	}
	if a.lock, err = lockRuntime(a.id.RuntimeDir, a.cfg.DataDir); err != nil {
		return err
	}
	log := a.log.Named("supervisor")
	a.pool, err = supervisor.NewPool(supervisor.PoolConfig{
		Dir: a.id.RuntimeDir, Exe: a.cfg.SupervisorExe, Wide: a.cfg.Scope == ScopeNode,
		Warn: func(msg string) { log.Warn(msg) },
	})
	if err != nil {
		return fmt.Errorf("nodekeep: runtime directory: %w", err)
	}
	if !a.cfg.NoCgroups {
		if a.tree, err = cgroup.Open(cgroup.Config{Slice: a.cfg.CgroupSlice, AgentID: a.id.ID, Mine: a.pool.Owns}); err != nil {
			return err
		}
		if a.tree.Mode() == cgroup.None {
			a.log.Warn("no cgroups: tasks are tracked by what they inherit", "reason", a.tree.Reason())
		}
		if lacking := a.tree.Lacking(); lacking != "" {
			a.log.Warn("cgroup controllers are missing", "lacking", lacking)
		}
	}
	if a.drivers, err = a.newDrivers(); err != nil {
		return err
	}
	return a.newDevices()
}

// release gives back what New took. Idempotent.
func (a *Agent) release() error {
	var errs []error
	if a.pool != nil {
		errs = append(errs, a.pool.Close())
	}
	errs = append(errs, a.unlockRuntime())
	return errors.Join(append(errs, a.store.Close())...)
}

// Close ends an agent that was never run. After Run it does nothing.
func (a *Agent) Close() error {
	if !a.begun.CompareAndSwap(false, true) {
		<-a.ended
		return nil
	}
	defer close(a.ended)
	return a.release()
}

// Run restores every alloc in the state, carries out what Apply brings and
// collects finished allocs, until ctx ends. It then lets go: tasks, their
// supervisors and the programs of their drivers live on, and Run returns nil once
// all is on disk, at most a few seconds later. Where nothing runs any more those
// programs end. It may be called once.
func (a *Agent) Run(ctx context.Context) error {
	if !a.begun.CompareAndSwap(false, true) {
		return fmt.Errorf("%w or Run was called twice", ErrClosed)
	}
	defer close(a.ended)
	err := a.run(ctx)
	return errors.Join(err, a.release())
}

func (a *Agent) run(ctx context.Context) error {
	if os.Geteuid() == 0 {
		a.private = filepath.Join(a.cfg.DataDir, "private")
		if err := allocdir.MountPrivate(ctx, a.private, 0); err != nil {
			a.log.Warn("private files of tasks lie on disk", "error", err)
			a.private = ""
		}
	}
	if err := a.load(ctx); err != nil {
		return err
	}
	a.freeDevices()
	a.freeUsers()
	close(a.loaded)
	ctx, letGo := a.drive(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { a.box.Run(ctx) })
	a.restore(ctx, restoreBound)
	wg.Go(func() { a.begin(ctx) })
	if a.pluginsReady(ctx); ctx.Err() == nil {
		close(a.ready)
	}
	a.collect(ctx)
	wg.Wait()
	a.runnerOf.wg.Wait()
	err := letGo()
	a.tidy(context.WithoutCancel(ctx))
	return err
}

// begin launches what Apply brings and, after the first contact, removes what
// belongs to nobody, until ctx ends.
func (a *Agent) begin(ctx context.Context) {
	r := &a.runnerOf
	defer close(r.leaving)
	contact := r.contact
	for {
		select {
		case batch := <-r.starting:
			for _, e := range batch {
				a.launch(ctx, e)
			}
		case <-contact:
			contact = nil
			r.wg.Go(func() { a.sweep(ctx) })
		case <-ctx.Done():
			return
		}
	}
}

// tidy leaves nothing of an agent of which nothing runs any more but its files.
func (a *Agent) tidy(ctx context.Context) {
	if a.busy() {
		return
	}
	if a.private != "" {
		if err := allocdir.UnmountPrivate(ctx, a.private); err != nil {
			a.log.Warn("private directory stays mounted", "error", err)
		}
	}
	if err := a.endNodeScope(ctx); err != nil {
		a.log.Warn("the node's supervisor stays", "error", err)
	}
	if a.tree != nil && a.tree.Mode() != cgroup.None {
		if err := a.tree.RemoveAll(); err != nil {
			a.log.Warn("cgroups stay", "error", err)
		}
	}
}

// busy says whether an alloc is not over.
func (a *Agent) busy() bool {
	a.runnerOf.mu.Lock()
	defer a.runnerOf.mu.Unlock()
	for _, e := range a.runnerOf.entries {
		if !e.over() {
			return true
		}
	}
	return false
}

// endNodeScope ends the supervisor that all allocs share (ScopeNode): no alloc's end
// is its own.
func (a *Agent) endNodeScope(ctx context.Context) error {
	names, err := a.pool.Names()
	if err != nil || !slices.Contains(names, "node") {
		return err
	}
	if err = a.pool.Scope("node").Release(ctx); errors.Is(err, supervisor.ErrBusy) {
		return nil // a task of no known alloc: the next agent's to end
	}
	return err
}

// Ready is closed once restore was attempted for every record and every driver and
// device plugin has given its first fingerprint (or a minute has passed).
func (a *Agent) Ready() <-chan struct{} { return a.ready }

// Done is closed when Run has returned.
func (a *Agent) Done() <-chan struct{} { return a.ended }

// Changed is closed at the next change of any alloc. Get it before reading, so
// that nothing falls between.
func (a *Agent) Changed() <-chan struct{} { return a.changed.wait() }

// Commits returns how many transactions reached the disk since New.
func (a *Agent) Commits() int64 {
	if s, ok := a.store.(interface{ Commits() int64 }); ok {
		return s.Commits()
	}
	return 0
}

// Node returns the facts of this node, with the defaults filled in.
func (a *Agent) Node() taskenv.Node { return a.cfg.Node }

// Allocs returns all allocs, collected ones that are still wanted included,
// oldest first. It does not block on work.
func (a *Agent) Allocs() []AllocStatus {
	r := &a.runnerOf
	r.mu.Lock()
	entries := slices.Collect(maps.Values(r.entries))
	out := make([]AllocStatus, 0, len(entries)+len(r.gone))
	for id, t := range r.gone {
		if r.entries[id] == nil {
			out = append(out, t.status())
		}
	}
	r.mu.Unlock()
	for _, e := range entries {
		out = append(out, e.status())
	}
	slices.SortFunc(out, func(x, y AllocStatus) int {
		if c := x.Alloc.CreateTime.Compare(y.Alloc.CreateTime); c != 0 {
			return c
		}
		return strings.Compare(x.Alloc.ID, y.Alloc.ID)
	})
	return out
}

// Alloc returns one alloc; false if the agent knows none of that id.
func (a *Agent) Alloc(id string) (AllocStatus, bool) {
	r := &a.runnerOf
	r.mu.Lock()
	e, t := r.entries[id], r.gone[id]
	r.mu.Unlock()
	switch {
	case e != nil:
		return e.status(), true
	case t.ID != "":
		return t.status(), true
	}
	return AllocStatus{}, false
}

// Dir returns the directory of an alloc, for its logs and files; false if the
// alloc has none (any more).
func (a *Agent) Dir(id string) (*allocdir.Dir, bool) {
	e, err := a.entry(id)
	if err != nil || e.dir == nil {
		return nil, false
	}
	return e.dir, true
}

func (a *Agent) entry(id string) (*entry, error) {
	a.runnerOf.mu.Lock()
	defer a.runnerOf.mu.Unlock()
	if e := a.runnerOf.entries[id]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrNoAlloc, id)
}

// live returns the runner of an alloc that has one.
func (a *Agent) live(id string) (*allocrunner.AllocRunner, error) {
	e, err := a.entry(id)
	switch {
	case err != nil:
		return nil, err
	case e.runner == nil:
		return nil, fmt.Errorf("%w: %s", allocrunner.ErrTerminal, e.fixed.Description)
	}
	return e.runner, nil
}

// Restart starts tasks of an alloc again (see allocrunner.AllocRunner.Restart).
func (a *Agent) Restart(ctx context.Context, id string, req allocrunner.RestartRequest) error {
	r, err := a.live(id)
	if err != nil {
		return err
	}
	return r.Restart(ctx, req)
}

// Signal sends a signal to a task of an alloc, or to all that run if task is "".
func (a *Agent) Signal(ctx context.Context, id, task, signal, reason string) error {
	r, err := a.live(id)
	if err != nil {
		return err
	}
	return r.Signal(ctx, task, signal, reason)
}

// Stop ends one alloc on this node, whatever is desired of it: the control plane
// sees it complete. It returns once the wish is on disk.
func (a *Agent) Stop(ctx context.Context, id string, req allocrunner.KillRequest) error {
	r, err := a.live(id)
	if err != nil {
		return err
	}
	return r.Kill(ctx, req)
}

// nudge has the collector look again.
func (a *Agent) nudge() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

func (a *Agent) now() time.Time { return time.Now() }
