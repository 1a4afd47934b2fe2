// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
)

// load makes an entry of every record. One that cannot be read is quarantined;
// it never stops the others.
func (a *Agent) load(ctx context.Context) error {
	r := &a.runnerOf
	var ids []string
	var p progress
	gone := map[string]tombstone{}
	err := a.store.View(func(tx state.Tx) error {
		ids = tx.Nodes(allocsPath)
		var err error
		if p, _, err = progressSlot.Load(tx, agentPath); err != nil {
			a.log.Error("how far the control plane was followed cannot be read; starting over", "error", err)
			p = progress{}
		}
		for _, id := range tx.Nodes(gonePath) {
			t, ok, err := goneSlot.Load(tx, gonePath.Join(id))
			if err != nil || !ok {
				t = tombstone{ID: id, Status: allocrunner.Complete, Description: "its last status cannot be read"}
			}
			gone[id] = t
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("nodekeep: load: %w", err)
	}
	if err := a.loadUsers(); err != nil {
		return err
	}
	r.mu.Lock()
	r.progress, r.gone = p, gone
	r.mu.Unlock()
	for _, id := range ids {
		e, err := a.recall(id)
		if err != nil {
			e = a.quarantine(ctx, id, err)
		}
		r.mu.Lock()
		r.entries[id] = e
		r.mu.Unlock()
	}
	aside := a.setAside()
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, reason := range aside {
		if r.entries[id] == nil {
			r.entries[id] = &entry{id: id, fixed: quarantined(id, reason)}
		}
	}
	return nil
}

// recall makes the entry of a record.
func (a *Agent) recall(id string) (*entry, error) {
	var al *spec.Alloc
	p := place{Scope: a.cfg.Scope}
	err := a.store.View(func(tx state.Tx) (err error) {
		if al, err = allocrunner.Load(tx, id); err != nil {
			return err
		}
		stored, ok, err := placeSlot.Load(tx, allocsPath.Join(id))
		if ok {
			p = stored
		}
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case al == nil:
		return nil, errors.New("the record holds no alloc")
	}
	return a.build(al, p)
}

func quarantined(id, reason string) AllocStatus {
	s := failed(&spec.Alloc{ID: id}, "its record could not be read: "+reason, time.Time{})
	s.Quarantined = reason
	return s
}

// quarantine sets a record aside and ends whatever carries its id: names derive
// from the id alone. What could not be ended keeps the record where it is, so
// that the next start tries again.
func (a *Agent) quarantine(ctx context.Context, id string, reason error) *entry {
	a.log.Error("alloc record cannot be read: it is set aside, its tasks are ended", "alloc_id", id, "error", reason)
	if err := a.erase(ctx, id); err != nil {
		a.log.Error("left-overs of an unreadable alloc remain", "alloc_id", id, "error", err)
	} else if err := a.store.Update(func(tx state.Tx) error {
		return errors.Join(moveAside(tx, id, reason.Error()), a.box.Fixed(tx, told(quarantined(id, reason.Error()))))
	}); err != nil {
		a.log.Error("an unreadable record could not be set aside", "alloc_id", id, "error", err)
	}
	return &entry{id: id, fixed: quarantined(id, reason.Error())}
}

// moveAside copies the raw record and removes it.
func moveAside(tx state.Tx, id, reason string) error {
	to := quarantine.Join(id)
	if err := errors.Join(tx.DeleteTree(to), copyTree(tx, allocsPath.Join(id), to.Join("record"))); err != nil {
		return err
	}
	return errors.Join(faultSlot.Save(tx, to, fault{Reason: reason}), tx.DeleteTree(allocsPath.Join(id)))
}

func copyTree(tx state.Tx, from, to state.Path) error {
	for _, key := range tx.Keys(from) {
		if err := tx.Put(to, key, tx.Get(from, key)); err != nil {
			return err
		}
	}
	for _, node := range tx.Nodes(from) {
		if err := copyTree(tx, from.Join(node), to.Join(node)); err != nil {
			return err
		}
	}
	return nil
}

// setAside returns the ids of quarantined records, and why.
func (a *Agent) setAside() map[string]string {
	out := map[string]string{}
	err := a.store.View(func(tx state.Tx) error {
		for _, id := range tx.Nodes(quarantine) {
			f, ok, err := faultSlot.Load(tx, quarantine.Join(id))
			if err != nil {
				f.Reason = err.Error()
			}
			if ok || err != nil { // else it left the list: only the copy is kept
				out[id] = f.Reason
			}
		}
		return nil
	})
	if err != nil {
		a.log.Error("quarantine cannot be read", "error", err)
	}
	return out
}

// erase ends every process and removes every cgroup, supervisor and directory
// that carries the alloc's id. Idempotent.
func (a *Agent) erase(ctx context.Context, id string) error {
	errs := []error{a.endScopes(ctx, func(scope, task string) bool {
		return scope == "alloc/"+id || strings.HasPrefix(scope, "task/"+id+"/") || strings.HasPrefix(task, id+"/")
	})}
	if a.tree != nil && a.tree.Mode() != cgroup.None {
		errs = append(errs, a.tree.RemoveAlloc(id))
	}
	errs = append(errs, a.killLost(id))
	dir, err := allocdir.New(allocdir.Config{Root: a.allocRoot(), AllocID: id, Private: a.private, Log: a.log})
	if err == nil {
		err = dir.Destroy(ctx)
	}
	return errors.Join(append(errs, err)...)
}

// attemptsSought bounds the attempts of a task that are looked for by name.
const attemptsSought = 1 << 16

// killLost ends the alloc's tasks without a cgroup that no supervisor remembers,
// whichever scope they were in. Their names are those of the directories they
// have; to be called while these are there.
func (a *Agent) killLost(id string) error {
	names, _ := os.ReadDir(filepath.Join(a.allocRoot(), id))
	ids := func(yield func(string) bool) {
		for _, name := range names {
			for n := range attemptsSought {
				if !yield(id + "/" + name.Name() + "/" + strconv.Itoa(n)) {
					return
				}
			}
		}
	}
	scopes := []string{"alloc/" + id, "node"}
	for _, name := range names {
		scopes = append(scopes, "task/"+id+"/"+name.Name())
	}
	var errs []error
	for _, scope := range scopes {
		n, err := a.pool.KillMarked(scope, id+"/", ids)
		if errs = append(errs, err); n > 0 {
			a.log.Warn("ended processes that no supervisor remembered", "alloc_id", id, "scope", scope, "processes", n)
		}
	}
	return errors.Join(errs...)
}

// restoreBound is how long one alloc may keep the agent from being ready.
const restoreBound = 30 * time.Second

// restore starts all runners side by side and waits until their
// tasks were looked for: what was running is found again by then, or known to be
// lost. One that takes longer than bound goes on beside the agent.
func (a *Agent) restore(ctx context.Context, bound time.Duration) {
	a.runnerOf.mu.Lock()
	var all []*entry
	for _, e := range a.runnerOf.entries {
		if e.runner != nil {
			all = append(all, e)
		}
	}
	a.runnerOf.mu.Unlock()
	for _, e := range all {
		a.launch(ctx, e)
	}
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for _, e := range all {
		restored := e.runner.AwaitRestored(bounded)
		if ctx.Err() != nil {
			return
		}
		if !restored {
			a.log.Warn("alloc is still being restored; the agent goes on without it", "alloc_id", e.id, "waited", bound)
			continue
		}
		s := e.status()
		a.log.Info("alloc restored", "alloc_id", e.id, "status", s.Status, "tasks", phases(s))
	}
}

func phases(s AllocStatus) map[string]string {
	out := make(map[string]string, len(s.Tasks))
	for name, t := range s.Tasks {
		out[name] = string(t.Phase)
	}
	return out
}
