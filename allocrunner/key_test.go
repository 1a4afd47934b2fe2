// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

func exitOf(code int) driver.ExitResult { return driver.ExitResult{Code: code} }

type address struct{ IP string }

func addressKey() allocrunner.Key[address] { return allocrunner.Key[address]{Name: "address"} }

// publisher publishes what value says in Prerun, and "<value>.<n>" in Update.
func publisher(name string, value func() (string, error)) allocrunner.HookFunc {
	return func(*spec.Alloc) (allocrunner.AnyHook, error) {
		return &allocrunner.Hook[int]{Name: name, Publishes: []string{addressKey().Name},
			Prerun: func(_ context.Context, r *allocrunner.Request, _ *int) error {
				v, err := value()
				return errors.Join(addressKey().Publish(r, address{v}), err)
			},
			Update: func(_ context.Context, r *allocrunner.Request, n *int) error {
				*n++
				return addressKey().Publish(r, address{fmt.Sprint("updated.", *n)})
			},
			Postrun: func(_ context.Context, r *allocrunner.Request, _ *int) error {
				if addressKey().Publish(r, address{"late"}) == nil {
					return errors.New("published in postrun")
				}
				return nil
			},
		}, nil
	}
}

// reader puts the key's value into the task's environment.
func reader(needs ...string) taskrunner.HookFunc {
	return func(*spec.Alloc, *spec.Task) (taskrunner.AnyHook, error) {
		return &taskrunner.Hook[struct{}]{Name: "reader", Needs: needs,
			Prestart: func(_ context.Context, r *taskrunner.Request, _ *struct{}) (c taskrunner.Contribution, err error) {
				v, ok, err := addressKey().Get(r)
				c.Env = map[string]string{"ADDRESS": fmt.Sprint(v.IP, ok)}
				return c, err
			}}, nil
	}
}

func (w *world) keyed(needs ...string) allocrunner.Config {
	cfg := w.config()
	cfg.Tasks.Hooks = []taskrunner.HookFunc{reader(needs...)}
	return cfg
}

func (w *world) env(i int) string {
	for _, e := range w.fake.Configs()[i].Env {
		if v, ok := strings.CutPrefix(e, "ADDRESS="); ok {
			return v
		}
	}
	return ""
}

// A key reaches the tasks' hooks, follows updates, and is there after a restart
// of the agent before any hook has run.
func TestKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main")
		var v atomic.Value
		var fail atomic.Bool
		v.Store("10.0.0.1")
		w.hooks = []allocrunner.HookFunc{publisher("net", func() (string, error) {
			if fail.Load() {
				return v.Load().(string), driver.Recoverable(errors.New("not yet"))
			}
			return v.Load().(string), nil
		})}
		a := w.startWith(w.keyed("address"))
		require.Equal(t, "10.0.0.1true", w.env(0))
		require.NoError(t, a.Update(t.Context(), a.newer(func(n *spec.Alloc) { n.Meta = map[string]string{"a": "b"} })))
		synctest.Wait()
		require.NoError(t, a.Restart(t.Context(), allocrunner.RestartRequest{}))
		synctest.Wait()
		require.Equal(t, "updated.1true", w.env(1))

		// The next agent's prerun hook cannot be asked yet; what it published is there.
		a.detach()
		v.Store("10.0.0.2")
		fail.Store(true)
		a = w.startWith(w.keyed("address"))
		require.NoError(t, a.Restart(t.Context(), allocrunner.RestartRequest{}))
		synctest.Wait()
		fail.Store(false)
		time.Sleep(2 * time.Minute)
		require.Equal(t, "10.0.0.2true", w.env(2))
		a.kill()
		require.Empty(t, a.Snapshot().Leftover)
	})
}

func TestKeyFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main")
		value := func() (string, error) { return "x", nil }
		w.hooks = []allocrunner.HookFunc{publisher("one", value), publisher("two", value)}
		_, err := allocrunner.New(w.keyed("address"))
		require.ErrorContains(t, err, `hooks "one" and "two" both publish key "address"`)
		w.hooks = nil
		_, err = allocrunner.New(w.keyed("address"))
		require.ErrorContains(t, err, `hook "reader" needs key "address", which no hook of the alloc publishes`)

		// What is not declared cannot be read, whoever publishes it.
		w.hooks = []allocrunner.HookFunc{publisher("one", value)}
		a := w.startWith(w.keyed())
		s := a.end(allocrunner.Failed)
		require.Contains(t, s.Tasks["web"].Reason, `reads key "address" and does not name it in Needs`)
	})
}

// A value that cannot be read any more is an error of the hook that reads it, and
// one of an older version is migrated.
func TestKeyVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main")
		w.hooks = []allocrunner.HookFunc{func(*spec.Alloc) (allocrunner.AnyHook, error) {
			return &allocrunner.Hook[int]{Name: "old", Publishes: []string{"address"}}, nil
		}}
		key := state.Path{"v1", "alloc", "a"}
		require.NoError(t, w.store.Update(func(tx state.Tx) error {
			raw, err := state.Slot[string]{Key: "shared.address", Version: 1}.Encode("10.0.0.9")
			return errors.Join(err, tx.Put(key, "shared.address", raw))
		}))
		cfg := w.config()
		cfg.Tasks.Hooks = []taskrunner.HookFunc{func(*spec.Alloc, *spec.Task) (taskrunner.AnyHook, error) {
			return &taskrunner.Hook[struct{}]{Name: "reader", Needs: []string{"address"},
				Prestart: func(_ context.Context, r *taskrunner.Request, _ *struct{}) (c taskrunner.Contribution, err error) {
					k := addressKey()
					if _, _, err := k.Get(r); err == nil {
						return c, errors.New("a string was read as an address")
					}
					k.Version, k.Migrate = 2, func(_ int, data []byte) (address, error) { return address{string(data)}, nil }
					v, _, err := k.Get(r)
					c.Env = map[string]string{"ADDRESS": v.IP}
					return c, err
				}}, nil
		}}
		a := w.startWith(cfg)
		require.Equal(t, `"10.0.0.9"`, w.env(0))
		a.kill()
	})
}
