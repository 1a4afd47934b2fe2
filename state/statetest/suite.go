// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package statetest

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nodekeep/nodekeep/state"
)

// Suite tests what package state promises of every store. open returns a new,
// empty store each time; the suite closes it.
func Suite(t *testing.T, open func(t *testing.T) state.Store) {
	for name, test := range map[string]func(*testing.T, state.Store){
		"values":     values,
		"nodes":      nodes,
		"names":      names,
		"rollback":   rollback,
		"read only":  readOnly,
		"copies":     copies,
		"no-ops":     noOps,
		"snapshot":   snapshot,
		"large":      large,
		"concurrent": concurrent,
		"failing":    failing,
		"panic":      panics,
		"goexit":     goexit,
		"ended":      ended,
		"log":        logBounds,
		"slots":      slots,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			test(t, s)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("close", func(t *testing.T) { closing(t, open(t)) })
	t.Run("crash", func(t *testing.T) { wrappers(t, open) })
}

func update(t *testing.T, s state.Store, fn func(state.Tx) error) {
	t.Helper()
	if err := s.Update(fn); err != nil {
		t.Fatal(err)
	}
}

func put(p state.Path, key, val string) func(state.Tx) error {
	return func(tx state.Tx) error { return tx.Put(p, key, []byte(val)) }
}

func get(t *testing.T, s state.Store, p state.Path, key string) (v []byte) {
	t.Helper()
	if err := s.View(func(tx state.Tx) error { v = tx.Get(p, key); return nil }); err != nil {
		t.Fatal(err)
	}
	return v
}

func equal(t *testing.T, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

var pa = state.Path{"v1", "alloc", "a"}

func values(t *testing.T, s state.Store) {
	equal(t, get(t, s, pa, "k"), []byte(nil))
	update(t, s, put(pa, "k", "1"))
	update(t, s, put(pa, "k", "2"))
	update(t, s, put(pa, "empty", ""))
	update(t, s, put(pa, "\x00\xff/", "odd"))
	equal(t, get(t, s, pa, "k"), []byte("2"))
	equal(t, get(t, s, pa, "empty"), []byte{})
	equal(t, get(t, s, pa, "\x00\xff/"), []byte("odd"))
	equal(t, get(t, s, pa[:2], "k"), []byte(nil))
	equal(t, get(t, s, nil, "k"), []byte(nil))
	update(t, s, func(tx state.Tx) error {
		equal(t, tx.Keys(pa), []string{"\x00\xff/", "empty", "k"})
		err := errors.Join(tx.Delete(pa, "k"), tx.Delete(pa, "k"), tx.Delete(pa.Join("no"), "k"))
		equal(t, tx.Get(pa, "k"), []byte(nil)) // a transaction sees its own writes
		return errors.Join(err, tx.Put(pa, "k", []byte("3")), tx.Delete(pa, "empty"))
	})
	equal(t, get(t, s, pa, "k"), []byte("3"))
	equal(t, get(t, s, pa, "empty"), []byte(nil))
}

func nodes(t *testing.T, s state.Store) {
	update(t, s, func(tx state.Tx) error {
		return errors.Join(
			tx.Put(pa, "alloc", []byte("A")),
			tx.Put(pa.Join("task-web"), "task", []byte("W")),
			tx.Put(pa.Join("task-db"), "task", []byte("D")),
			tx.Put(state.Path{"v1", "alloc", "ab"}, "alloc", []byte("B")),
			tx.Put(state.Path{"v0"}, "x", []byte("0")),
		)
	})
	check := func(p state.Path, keys, nodes []string) {
		t.Helper()
		if err := s.View(func(tx state.Tx) error {
			equal(t, tx.Keys(p), keys)
			equal(t, tx.Nodes(p), nodes)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	check(nil, nil, []string{"v0", "v1"})
	check(state.Path{"v1"}, nil, []string{"alloc"})
	check(state.Path{"v1", "alloc"}, nil, []string{"a", "ab"})
	check(pa, []string{"alloc"}, []string{"task-db", "task-web"})
	check(pa.Join("nobody"), nil, nil)
	check(pa.Join("alloc"), nil, nil) // a value is no node
	update(t, s, func(tx state.Tx) error {
		return errors.Join(tx.Delete(pa.Join("task-db"), "task"), tx.DeleteTree(pa.Join("no")), tx.DeleteTree(state.Path{"no"}))
	})
	check(pa, []string{"alloc"}, []string{"task-db", "task-web"}) // an empty node stays
	update(t, s, func(tx state.Tx) error {
		to := state.Path{"quarantine", "a"}
		if err := errors.Join(state.CopyTree(tx, pa, to), tx.DeleteTree(pa)); err != nil {
			return err
		}
		equal(t, tx.Get(pa, "alloc"), []byte(nil))
		return tx.Put(pa, "new", nil) // the name is free again
	})
	check(pa, []string{"new"}, nil)
	check(state.Path{"v1", "alloc"}, nil, []string{"a", "ab"})
	equal(t, get(t, s, state.Path{"quarantine", "a", "task-web"}, "task"), []byte("W"))
	update(t, s, func(tx state.Tx) error { return tx.DeleteTree(state.Path{"v1"}) })
	check(nil, nil, []string{"quarantine", "v0"})
}

func names(t *testing.T, s state.Store) {
	update(t, s, put(pa, "value", "x"))
	update(t, s, put(pa.Join("node"), "k", "x"))
	for name, fn := range map[string]func(tx state.Tx) error{
		"no path":        put(nil, "k", ""),
		"empty element":  put(state.Path{"v1", ""}, "k", ""),
		"empty key":      put(pa, "", ""),
		"long key":       put(pa, strings.Repeat("k", 1<<16), ""),
		"long element":   put(state.Path{strings.Repeat("k", 1<<16)}, "k", ""),
		"delete all":     func(tx state.Tx) error { return tx.DeleteTree(nil) },
		"node as value":  put(pa, "node", ""),
		"value as node":  put(pa.Join("value"), "k", ""),
		"value as nodes": put(pa.Join("value", "further"), "k", ""),
		"delete a node":  func(tx state.Tx) error { return tx.Delete(pa, "node") },
		"a value's tree": func(tx state.Tx) error { return tx.DeleteTree(pa.Join("value")) },
		"store's own":    put(state.Path{"_store"}, "layout", "9"),
	} {
		if err := s.Update(fn); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	equal(t, get(t, s, pa, "node"), []byte(nil))
	equal(t, get(t, s, pa, "value"), []byte("x"))
	equal(t, get(t, s, state.Path{"_store"}, "layout"), []byte(nil))
}

func rollback(t *testing.T, s state.Store) {
	update(t, s, put(pa, "k", "old"))
	no := errors.New("no")
	err := s.Update(func(tx state.Tx) error {
		return errors.Join(tx.Put(pa, "k", []byte("new")), tx.Put(pa.Join("n", "m"), "k", nil),
			tx.DeleteTree(pa), tx.Put(state.Path{"other"}, "k", nil), no)
	})
	if !errors.Is(err, no) || errors.Is(err, state.ErrCommit) {
		t.Errorf("got %v", err)
	}
	out, err := Dump(s)
	equal(t, out, []string{"v1/", "v1/alloc/", "v1/alloc/a/", `v1/alloc/a/k = "old"`})
	equal(t, err, nil)
	if err := s.View(func(state.Tx) error { return no }); !errors.Is(err, no) {
		t.Errorf("got %v", err)
	}
}

func readOnly(t *testing.T, s state.Store) {
	update(t, s, put(pa, "k", "v"))
	for name, fn := range map[string]func(state.Tx) error{
		"put":      put(pa, "k", "w"),
		"new":      put(pa.Join("n"), "k", "w"),
		"delete":   func(tx state.Tx) error { return tx.Delete(pa, "k") },
		"tree":     func(tx state.Tx) error { return tx.DeleteTree(pa) },
		"root":     func(tx state.Tx) error { return tx.DeleteTree(pa[:1]) },
		"no-op":    put(pa, "k", "v"),
		"none":     func(tx state.Tx) error { return tx.Delete(pa, "none") },
		"no trees": func(tx state.Tx) error { return tx.DeleteTree(state.Path{"none"}) },
	} {
		if err := s.View(fn); !errors.Is(err, state.ErrReadOnly) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	equal(t, get(t, s, pa, "k"), []byte("v"))
}

func copies(t *testing.T, s state.Store) {
	update(t, s, func(tx state.Tx) error {
		val := []byte("value")
		err := tx.Put(pa, "k", val)
		copy(val, "XXXXX")
		copy(tx.Get(pa, "k"), "YYYYY")
		return err
	})
	v := get(t, s, pa, "k")
	equal(t, v, []byte("value"))
	copy(v, "ZZZZZ") // after the transaction too
	equal(t, get(t, s, pa, "k"), []byte("value"))
	p := append(make(state.Path, 0, 10), "v1", "x")
	update(t, s, func(tx state.Tx) error { // the store keeps no path
		p[1] = "x"
		err := tx.Put(p, "k", nil)
		p[1] = "y"
		return errors.Join(err, tx.Put(p, "k", nil))
	})
	equal(t, get(t, s, state.Path{"v1", "x"}, "k"), []byte{})
	equal(t, get(t, s, state.Path{"v1", "y"}, "k"), []byte{})
}

// Writes that change nothing do not touch the disk.
func noOps(t *testing.T, s state.Store) {
	stats, ok := s.(state.Stats)
	if !ok {
		t.Skip("no Stats")
	}
	update(t, s, put(pa, "k", "v"))
	before := stats.Commits()
	update(t, s, put(pa, "k", "v"))
	update(t, s, func(tx state.Tx) error {
		return errors.Join(tx.Delete(pa, "none"), tx.DeleteTree(pa.Join("none")), put(pa, "k", "v")(tx))
	})
	update(t, s, func(tx state.Tx) error { tx.Get(pa, "k"); return nil })
	if n := stats.Commits(); n != before {
		t.Errorf("%d commits for nothing", n-before)
	}
	update(t, s, put(pa, "k", "w"))
	if n := stats.Commits(); n != before+1 {
		t.Errorf("%d commits for one change", n-before)
	}
}

// A View neither blocks nor is blocked, and sees one state throughout.
func snapshot(t *testing.T, s state.Store) {
	update(t, s, put(pa, "k", "1"))
	err := s.View(func(tx state.Tx) error {
		done := make(chan error)
		go func() { done <- s.Update(put(pa, "k", "2")) }()
		if err := <-done; err != nil {
			return err
		}
		equal(t, tx.Get(pa, "k"), []byte("1"))
		go func() { done <- s.Update(func(tx state.Tx) error { return tx.DeleteTree(pa) }) }()
		if err := <-done; err != nil {
			return err
		}
		equal(t, tx.Get(pa, "k"), []byte("1"))
		equal(t, tx.Keys(pa), []string{"k"})
		return nil
	})
	equal(t, err, nil)
	equal(t, get(t, s, pa, "k"), []byte(nil))
	update(t, s, func(tx state.Tx) error {
		err := tx.Put(pa, "k", []byte("3"))
		seen := make(chan []byte)
		go func() { seen <- get(t, s, pa, "k") }()
		equal(t, <-seen, []byte(nil)) // not what is not committed
		return err
	})
}

// The tree may grow by much while a View is open.
func large(t *testing.T, s state.Store) {
	update(t, s, put(pa, "k", "1"))
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<14)
	err := s.View(func(tx state.Tx) error {
		done := make(chan error)
		go func() {
			done <- s.Update(func(tx state.Tx) error {
				for i := range 64 {
					if err := tx.Put(pa.Join("big"), fmt.Sprint(i), append(big, byte(i))); err != nil {
						return err
					}
				}
				return nil
			})
		}()
		err := <-done
		equal(t, tx.Nodes(pa), []string(nil))
		return err
	})
	equal(t, err, nil)
	for i := range 64 {
		if !bytes.Equal(get(t, s, pa.Join("big"), fmt.Sprint(i)), append(big, byte(i))) {
			t.Fatal(i)
		}
	}
}

func concurrent(t *testing.T, s state.Store) {
	const callers, each = 16, 20
	counter := state.Slot[int]{Key: "n", Version: 1}
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				if err := s.Update(func(tx state.Tx) error {
					n, _, err := counter.Load(tx, pa)
					return errors.Join(err, counter.Save(tx, pa, n+1), tx.Put(pa.Join(fmt.Sprint(c)), fmt.Sprint(i), nil))
				}); err != nil {
					t.Error(err)
				}
				// Both or none: what one transaction wrote.
				if err := s.View(func(tx state.Tx) error {
					n, _, err := counter.Load(tx, pa)
					sum := 0
					for _, c := range tx.Nodes(pa) {
						sum += len(tx.Keys(pa.Join(c)))
					}
					if n != sum {
						t.Errorf("counter %d, values %d", n, sum)
					}
					return err
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := s.View(func(tx state.Tx) error {
		n, _, err := counter.Load(tx, pa)
		equal(t, n, callers*each)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// Who fails takes out only itself, whatever it wrote before.
func failing(t *testing.T, s state.Store) {
	const callers = 200
	var wg sync.WaitGroup
	for i := range callers {
		key := fmt.Sprint(i)
		wg.Go(func() {
			no := errors.New("no " + key)
			err := s.Update(func(tx state.Tx) error {
				if i%5 == 1 {
					return no
				}
				if err := tx.Put(pa, key, []byte(key)); err != nil || i%5 != 3 {
					return err
				}
				return no
			})
			if want := i%5 == 1 || i%5 == 3; want != errors.Is(err, no) || !want && err != nil {
				t.Errorf("%s: %v", key, err)
			}
		})
	}
	wg.Wait()
	if err := s.View(func(tx state.Tx) error {
		equal(t, len(tx.Keys(pa)), callers*3/5)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A panic reaches the caller, nothing is written, and the store lives on.
func panics(t *testing.T, s state.Store) {
	reason := errors.New("reason")
	for name, run := range map[string]func(func(state.Tx) error) error{"update": s.Update, "view": s.View} {
		func() {
			defer func() {
				if err, ok := recover().(error); !ok || !errors.Is(err, reason) {
					t.Errorf("%s: panic with %v", name, err)
				}
			}()
			t.Errorf("%s returned %v", name, run(func(tx state.Tx) error { _ = tx.Put(pa, "k", nil); panic(reason) }))
		}()
	}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			defer func() { _ = recover() }()
			if err := s.Update(func(tx state.Tx) error {
				err := tx.Put(pa, fmt.Sprint(i), nil)
				if i%10 == 0 {
					panic(i)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := s.View(func(tx state.Tx) error { equal(t, len(tx.Keys(pa)), 90); return nil }); err != nil {
		t.Fatal(err)
	}
}

// runtime.Goexit in a function, as by t.FailNow, ends the caller's goroutine.
func goexit(t *testing.T, s state.Store) {
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			exited := true
			defer func() {
				if exited != (i%10 == 0) {
					t.Errorf("%d: exited %v", i, exited)
				}
			}()
			err := s.Update(func(tx state.Tx) error {
				err := tx.Put(pa, fmt.Sprint(i), nil)
				if i%10 == 0 {
					runtime.Goexit()
				}
				return err
			})
			exited = false
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Go(func() { _ = s.View(func(state.Tx) error { runtime.Goexit(); return nil }) })
	wg.Wait()
	if err := s.View(func(tx state.Tx) error { equal(t, len(tx.Keys(pa)), 45); return nil }); err != nil {
		t.Fatal(err)
	}
}

// A transaction that is used after its end does not read what is not there.
func ended(t *testing.T, s state.Store) {
	var kept []state.Tx
	keep := func(tx state.Tx) error { kept = append(kept, tx); return nil }
	update(t, s, keep)
	if err := s.View(keep); err != nil {
		t.Fatal(err)
	}
	for _, tx := range kept {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			tx.Get(pa, "k")
		}()
	}
}

func closing(t *testing.T, s state.Store) {
	update(t, s, put(pa, "k", "v"))
	entered, leave, done := make(chan struct{}), make(chan struct{}), make(chan error, 2)
	go func() {
		done <- s.View(func(tx state.Tx) error {
			close(entered)
			<-leave
			if !slices.Equal(tx.Get(pa, "k"), []byte("v")) {
				t.Error("the value went away under a View")
			}
			return nil
		})
	}()
	<-entered
	go func() { done <- s.Close() }()
	close(leave)
	equal(t, errors.Join(<-done, <-done), nil)
	for name, err := range map[string]error{
		"view": s.View(func(state.Tx) error { return nil }), "update": s.Update(put(pa, "k", "")), "close": s.Close(),
	} {
		if !errors.Is(err, state.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
