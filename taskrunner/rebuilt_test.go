// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// Environment, directories and all that hooks contribute are after a restore what
// they are after a fresh start: for poststart and update hooks, for whoever asks
// while the task runs, and for the next start.
func TestRestoredEnvironment(t *testing.T) {
	dir, err := allocdir.New(allocdir.Config{Root: t.TempDir(), AllocID: "a1"})
	require.NoError(t, err)
	for name, iso := range map[string]driver.FSIsolation{"host paths": driver.FSNone, "paths of its own": driver.FSChroot} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.fake.Capabilities = &driver.Capabilities{SendSignals: true, IdempotentStart: true, FSIsolation: iso}
				w.task().Env = map[string]string{"OWN": "${NOMAD_TASK_DIR}/x", "PORT_TEXT": "${PORT}"}
				w.edit = func(c *taskrunner.Config) { c.Dir = dir }
				var seen []string
				look := func(what string) func(context.Context, *taskrunner.Request, *struct{}) error {
					return func(_ context.Context, r *taskrunner.Request, _ *struct{}) error {
						seen = append(seen, fmt.Sprint(what, r.Env().List(), r.HostEnv().List(), r.Dir, r.TaskID))
						return nil
					}
				}
				w.hooks = []taskrunner.HookFunc{
					hookOf(&taskrunner.Hook[int]{Name: "port", Prestart: func(_ context.Context, _ *taskrunner.Request, n *int) (c taskrunner.Contribution, err error) {
						if *n == 0 {
							*n = 4711 // taken once, given each time
						}
						c.Env = map[string]string{"PORT": fmt.Sprint(*n)}
						c.Mounts = []driver.Mount{{Source: "/a", Target: "/b"}}
						return c, nil
					}}),
					hookOf(&taskrunner.Hook[struct{}]{Name: "look", Poststart: look("poststart"), Update: look("update")}),
				}
				a := w.start()
				require.NoError(t, a.Update(t.Context(), w.with(func(a *spec.Alloc) { a.JobMeta = map[string]string{"v": "1"} })))
				synctest.Wait()
				fresh := seen
				require.Len(t, fresh, 2)
				a.detach()
				w.fake.Forget()

				seen = nil
				b := w.start()
				b.phase(taskrunner.Running)
				require.NoError(t, b.Update(t.Context(), w.with(func(a *spec.Alloc) { a.DesiredReason = "nothing of the environment" })))
				synctest.Wait()
				require.Equal(t, fresh[1][len("update"):], seen[0][len("poststart"):], "as the last version had it")
				require.Equal(t, fresh[1], seen[1])
				require.NoError(t, b.Restart(t.Context(), taskrunner.RestartRequest{}))
				time.Sleep(time.Minute)
				b.phase(taskrunner.Running)
				first, next := w.fake.Configs()[0], w.fake.Configs()[1]
				require.Equal(t, first.Mounts, next.Mounts)
				require.Equal(t, first.Dirs, next.Dirs)
				require.Equal(t, len(first.Env)+2, len(next.Env), "and what is new in the version")
				require.Subset(t, next.Env, first.Env)
				b.killNow()
				b.end()
			})
		})
	}
}

// What is asked of a task finds it again whatever became of its driver and its
// attempt: exec uses the driver of now.
func TestExecFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start()
		exec := func() error {
			_, err := a.Exec(t.Context(), driver.ExecRequest{Command: []string{"true"}})
			return err
		}
		require.NoError(t, exec())
		w.fake.Break(driver.ErrPluginGone) // its process dies, and is started again
		time.Sleep(10 * time.Second)
		require.NoError(t, exec())
		require.NoError(t, a.Restart(t.Context(), taskrunner.RestartRequest{}))
		time.Sleep(time.Minute)
		require.NoError(t, exec())
		a.detach()
		w.fake.Forget()
		a = w.start()
		require.NoError(t, exec())
		require.Equal(t, 4, w.fake.Count(drivertest.Exec))
		a.killNow()
		a.end()
		require.ErrorIs(t, exec(), taskrunner.ErrNotRunning)
	})
}
