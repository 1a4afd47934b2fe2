// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package state_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/nodekeep/nodekeep/state"
)

type snap struct {
	Phase, Handle, Reason string
	Attempt               int
	Events                []string
}

func someSnap(i int) snap {
	return snap{"running", `{"pid":12345,"start":99887766,"boot_id":"0f0e"}`, "", i, []string{"Task Setup", "Started"}}
}

var snapSlot = state.Slot[snap]{Key: "task", Version: 1}

func allocPath(i int) state.Path {
	return state.Path{"v1", "alloc", fmt.Sprintf("5b1f2e6a-0000-4000-8000-%012d", i), "task-web"}
}

// fill writes n allocs of about the size of real ones.
func fill(tb testing.TB, s state.Store, n int) {
	alloc := make([]byte, 4<<10)
	for from := 0; from < n; from += 100 {
		if err := s.Update(func(tx state.Tx) error {
			for i := from; i < min(from+100, n); i++ {
				p := allocPath(i)
				if err := snapSlot.Save(tx, p, someSnap(i)); err != nil {
					return err
				}
				for h := range 8 {
					if err := tx.Put(p, "hook.h"+strconv.Itoa(h), []byte(`{"N":1,"done":true}`)); err != nil {
						return err
					}
				}
				if err := tx.Put(p[:3], "alloc", alloc); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			tb.Fatal(err)
		}
	}
}

// BenchmarkUpdate is the cost of a commit: alone, and shared by 64 callers.
// "limit" is what the disk does without us: two fdatasyncs of a page each.
func BenchmarkUpdate(b *testing.B) {
	for _, allocs := range []int{1, 1000} {
		s, err := state.Open(state.OpenConfig{Path: filepath.Join(b.TempDir(), "state.db")})
		if err != nil {
			b.Fatal(err)
		}
		fill(b, s, allocs)
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("allocs=%d/callers=%d", allocs, callers), func(b *testing.B) {
				before := s.(state.Stats).Commits()
				var next atomic.Int64
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						for i := int(next.Add(1)); i <= b.N; i = int(next.Add(1)) {
							raw, err := snapSlot.Encode(someSnap(i))
							if err != nil {
								b.Error(err)
							}
							p := allocPath(i % allocs)
							if err := s.Update(func(tx state.Tx) error { return tx.Put(p, snapSlot.Key, raw) }); err != nil {
								b.Error(err)
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(s.(state.Stats).Commits()-before)/float64(b.N), "commits/op")
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "updates/s")
			})
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("limit", func(b *testing.B) {
		f, err := os.Create(filepath.Join(b.TempDir(), "f"))
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		page := make([]byte, 4096)
		for i := range b.N {
			for _, at := range []int64{int64(i%16+2) * 4096, int64(i%2) * 4096} {
				page[0]++
				if _, err := f.WriteAt(page, at); err != nil {
					b.Fatal(err)
				}
				if err := syscall.Fdatasync(int(f.Fd())); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "updates/s")
	})
}

// BenchmarkOpen is what a restart waits for: the check of the file and its open.
func BenchmarkOpen(b *testing.B) {
	for _, allocs := range []int{0, 100, 1000} {
		path := filepath.Join(b.TempDir(), "state.db")
		s, err := state.Open(state.OpenConfig{Path: path})
		if err != nil {
			b.Fatal(err)
		}
		fill(b, s, allocs)
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("allocs=%d", allocs), func(b *testing.B) {
			for b.Loop() {
				s, err := state.Open(state.OpenConfig{Path: path})
				if err != nil {
					b.Fatal(err)
				}
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLoad reads the state of 1,000 allocs in one View.
func BenchmarkLoad(b *testing.B) {
	for name, open := range map[string]func() state.Store{
		"memory": state.Memory,
		"file": func() state.Store {
			s, err := state.Open(state.OpenConfig{Path: filepath.Join(b.TempDir(), "state.db")})
			if err != nil {
				b.Fatal(err)
			}
			return s
		},
	} {
		s := open()
		fill(b, s, 1000)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				n := 0
				if err := s.View(func(tx state.Tx) error {
					for _, id := range tx.Nodes(state.Path{"v1", "alloc"}) {
						p := state.Path{"v1", "alloc", id, "task-web"}
						for _, k := range tx.Keys(p) {
							n += len(tx.Get(p, k))
						}
					}
					return nil
				}); err != nil || n == 0 {
					b.Fatal(n, err)
				}
			}
		})
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLog is an append beside a transition, in a log that is full.
func BenchmarkLog(b *testing.B) {
	for name, s := range map[string]state.Store{"memory": state.Memory(), "file": nil} {
		if s == nil {
			var err error
			if s, err = state.Open(state.OpenConfig{Path: filepath.Join(b.TempDir(), "state.db")}); err != nil {
				b.Fatal(err)
			}
		}
		l := state.Log{Path: state.Path{"v1", "events"}}
		payload := make([]byte, 300)
		if err := s.Update(func(tx state.Tx) error {
			for range 10_000 {
				if _, err := l.Append(tx, payload); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := s.Update(func(tx state.Tx) error { _, err := l.Append(tx, payload); return err }); err != nil {
					b.Fatal(err)
				}
			}
		})
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
