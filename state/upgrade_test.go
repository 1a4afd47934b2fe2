// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A next version that does not exist yet: it renames a field, which it writes as
// version 1 has it until the upgrade is committed, and moves a value.
type planV1 struct{ Name string }
type planV2 struct{ Title string }

var (
	planSlot1 = Slot[planV1]{Key: "plan", Version: 1}
	planSlot2 = Slot[planV2]{Key: "plan", Version: 2, Migrate: func(_ int, data []byte) (planV2, error) {
		var v planV1
		err := json.Unmarshal(data, &v)
		return planV2{v.Name}, err
	}}
	planPath = Path{"v1", "agent"}
	oldPlace = Path{"v1", "old"}
	newPlace = Path{"v1", "new"}
)

func nextSteps(fail func() error) []step {
	return []step{{
		older: func(_ Path, key string, val []byte) ([]byte, error) {
			if key != "plan" {
				return val, nil
			}
			v, err := planSlot2.Decode(val)
			if err != nil {
				return nil, err
			}
			return planSlot1.Encode(planV1{v.Title})
		},
		migrate: func(tx Tx) error {
			return errors.Join(tx.Put(newPlace, "k", tx.Get(oldPlace, "k")), tx.DeleteTree(oldPlace), fail())
		},
	}}
}

// programs are version 1 and the one after it, on one file.
type programs struct {
	*testing.T
	path string
	mu   sync.Mutex
	fail error
	warn []string
}

func (p *programs) warned(msg string, _ ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.warn = append(p.warn, msg)
}

func (p *programs) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fail
}

func (p *programs) failWith(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail = err
}

func (p *programs) open(version int) *bolt {
	p.Helper()
	steps := []step(nil)
	if version == 2 {
		steps = nextSteps(p.failure)
	}
	s, err := open(OpenConfig{Path: p.path, Warn: p.warned}, steps)
	if err != nil {
		p.Fatal(err)
	}
	return s
}

func (p *programs) ok(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *programs) is(what string, got, want any) {
	p.Helper()
	if got != want {
		p.Fatalf("%s is %v, not %v", what, got, want)
	}
}

func (p *programs) name1(s Store) (name string) {
	p.Helper()
	p.ok(s.View(func(tx Tx) error { v, _, err := planSlot1.Load(tx, planPath); name = v.Name; return err }))
	return name
}

func (p *programs) name2(s Store) (name string) {
	p.Helper()
	p.ok(s.View(func(tx Tx) error { v, _, err := planSlot2.Load(tx, planPath); name = v.Title; return err }))
	return name
}

func newPrograms(t *testing.T) *programs {
	p := &programs{T: t, path: filepath.Join(t.TempDir(), "state.db")}
	s := p.open(1)
	p.ok(s.Update(func(tx Tx) error {
		return errors.Join(planSlot1.Save(tx, planPath, planV1{"one"}), tx.Put(oldPlace, "k", []byte("v")))
	}))
	p.ok(s.Close())
	return p
}

func TestUpgradeCanBeTakenBack(t *testing.T) {
	p := newPrograms(t)
	s := p.open(2)
	u, ok := s.Upgrade()
	p.is("pending", ok && u.From == 1 && u.To == 2 && u.Left > 23*time.Hour && time.Since(u.Since) < time.Hour, true)
	p.is("the name", p.name2(s), "one")
	p.ok(s.Update(func(tx Tx) error { return planSlot2.Save(tx, planPath, planV2{"two"}) }))
	p.is("the name", p.name2(s), "two")
	before := s.Commits()
	p.ok(s.Update(func(tx Tx) error { return planSlot2.Save(tx, planPath, planV2{"two"}) }))
	p.is("writes of what is there", s.Commits()-before, int64(0))
	p.ok(s.Close())

	// Version 1 is put back and finds what version 2 wrote.
	s = p.open(1)
	p.is("the name", p.name1(s), "two")
	_, ok = s.Upgrade()
	p.is("pending", ok, false)
	p.ok(s.CommitUpgrade())
	p.ok(s.Update(func(tx Tx) error { return planSlot1.Save(tx, planPath, planV1{"three"}) }))
	m, err := loadMark(s.db)
	p.ok(err)
	p.is("the mark", m, mark{})
	p.ok(s.Close())

	s = p.open(2)
	p.is("the name", p.name2(s), "three")
	p.ok(s.Update(func(tx Tx) error { return planSlot2.Save(tx, planPath, planV2{"four"}) }))
	file, err := os.ReadFile(p.path)
	p.ok(err)
	no := errors.New("no")
	p.failWith(no)
	err = s.CommitUpgrade()
	p.is("a commit that fails", errors.Is(err, no) && errors.Is(err, ErrCommit), true)
	p.is("the name", p.name2(s), "four")
	_, ok = s.Upgrade()
	p.is("pending", ok, true)
	p.failWith(nil)
	p.ok(s.CommitUpgrade())
	p.ok(s.CommitUpgrade())
	_, ok = s.Upgrade()
	p.is("pending", ok, false)
	p.is("the name", p.name2(s), "four")
	p.ok(s.Update(func(tx Tx) error {
		if string(tx.Get(newPlace, "k")) != "v" || tx.Get(oldPlace, "k") != nil {
			t.Error("not migrated")
		}
		return planSlot2.Save(tx, planPath, planV2{"five"})
	}))
	p.ok(s.Close())

	// From here on version 1 refuses it before any write.
	committed, err := os.ReadFile(p.path)
	p.ok(err)
	_, err = open(OpenConfig{Path: p.path}, nil)
	p.is("too new", errors.Is(err, ErrTooNew) && strings.Contains(err.Error(), p.path+".v1.bak"), true)
	now, err := os.ReadFile(p.path)
	p.ok(err)
	p.is("untouched", bytes.Equal(now, committed), true)
	backup, err := os.ReadFile(p.path + ".v1.bak")
	p.ok(err)
	p.is("the backup's size", len(backup), len(file))
	p.ok(os.WriteFile(p.path, backup, 0o600))
	s = p.open(1)
	p.is("the name", p.name1(s), "four")
	p.ok(s.Close())
}

// It is committed after 24 h of agent life: not sooner for a machine that was off
// or whose clock jumped, not later for an agent that often starts anew.
func TestUpgradeByItself(t *testing.T) {
	p := newPrograms(t)
	synctest.Test(t, func(t *testing.T) {
		s := p.open(2)
		time.Sleep(23*time.Hour + 30*time.Minute)
		synctest.Wait()
		u, ok := s.Upgrade()
		p.is("pending", ok && u.Left == 30*time.Minute, true)
		p.ok(s.Close())
		time.Sleep(1000 * time.Hour)
		s = p.open(2)
		u, ok = s.Upgrade()
		p.is("pending", ok && u.Left == 30*time.Minute, true)
		// A crash costs at most an hour of it.
		p.ok(s.acquire())
		m, err := loadMark(s.db)
		s.mu.RUnlock()
		p.ok(err)
		p.is("on disk", m.Life, 23*time.Hour+30*time.Minute)
		p.failWith(errors.New("no space"))
		time.Sleep(time.Hour)
		synctest.Wait()
		_, ok = s.Upgrade()
		p.is("pending after a failure", ok, true)
		p.failWith(nil)
		p.ok(s.Update(func(tx Tx) error { return planSlot2.Save(tx, planPath, planV2{"later"}) }))
		time.Sleep(time.Hour)
		synctest.Wait()
		_, ok = s.Upgrade()
		p.is("pending", ok, false)
		p.is("the name", p.name2(s), "later")
		p.ok(s.Close())
		p.is("warnings", fmt.Sprint(len(p.warn) > 2), "true")
	})
}

// Whoever skips a version upgrades to the one before the newest at once.
func TestUpgradeOfTwo(t *testing.T) {
	p := newPrograms(t)
	trail := func(s string) func(Tx) error {
		return func(tx Tx) error { return tx.Put(planPath, "trail", append(tx.Get(planPath, "trail"), s...)) }
	}
	three := []step{{migrate: trail("2")}, {migrate: trail("3")}}
	s, err := open(OpenConfig{Path: p.path}, three)
	p.ok(err)
	read := func() (got string) {
		p.ok(s.View(func(tx Tx) error { got = string(tx.Get(planPath, "trail")); return nil }))
		return got
	}
	p.is("the trail", read(), "2")
	p.ok(s.Close())
	info, err := inspectFile(p.path)
	p.ok(err)
	p.is("the layout", info.layout, 2)
	s, err = open(OpenConfig{Path: p.path}, three)
	p.ok(err)
	p.ok(s.CommitUpgrade())
	p.is("the trail", read(), "23")
	p.ok(s.Close())
	s, err = open(OpenConfig{Path: filepath.Join(t.TempDir(), "new.db")}, three)
	p.ok(err)
	_, ok := s.Upgrade()
	p.is("pending in a new store", ok, false)
	p.ok(s.Close())
}

// Transactions go on around the commit of an upgrade, and none is lost.
func TestUpgradeUnderLoad(t *testing.T) {
	p := newPrograms(t)
	s := p.open(2)
	const writers, each = 4, 20
	done := make(chan error, writers)
	for w := range writers {
		go func() {
			var err error
			for i := 0; i < each && err == nil; i++ {
				err = s.Update(func(tx Tx) error { return tx.Put(Path{"v1", fmt.Sprint(w)}, fmt.Sprint(i), []byte("x")) })
			}
			done <- err
		}()
	}
	p.ok(s.CommitUpgrade())
	for range writers {
		p.ok(<-done)
	}
	p.ok(s.View(func(tx Tx) error {
		for w := range writers {
			p.is("written", len(tx.Keys(Path{"v1", fmt.Sprint(w)})), each)
		}
		return nil
	}))
	p.ok(s.Close())
	info, err := inspectFile(p.path)
	p.ok(err)
	p.is("the layout", info.layout, 2)
}
