// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
)

func (s *suite) recoverRunning() {
	c := s.task("recover/running/0", s.cfg.Sleep)
	h := s.start(c)
	s.renew()
	require.NoError(s, s.d.Recover(s.limit(), h))
	require.NoError(s, s.d.Recover(s.limit(), h), "recovering again is no error")
	if i, ok := s.d.(driver.Inspector); ok {
		st, err := i.Inspect(s.limit(), c.ID)
		require.NoError(s, err)
		require.Equal(s, "running", st.State)
	}
	require.NoError(s, s.d.Stop(s.limit(), c.ID, "SIGTERM", 30*time.Second))
	require.Equal(s, s.terminated(), s.wait(c.ID))
}

func (s *suite) recoverEnded() {
	c := s.task("recover/ended/0", s.cfg.Exit(42))
	h := s.start(c)
	s.wait(c.ID)
	s.renew()
	require.NoError(s, s.d.Recover(s.limit(), h))
	require.Equal(s, driver.ExitResult{Code: 42}, s.wait(c.ID), "the true result of an exit that no agent acknowledged")
}

func (s *suite) recoverGone() {
	c := s.task("recover/gone/0", s.cfg.Sleep)
	h := s.start(c)
	require.NoError(s, s.d.Destroy(s.limit(), ref(c, h), true))
	require.ErrorIs(s, s.d.Recover(s.limit(), h), driver.ErrTaskNotFound)
	s.renew()
	require.ErrorIs(s, s.d.Recover(s.limit(), h), driver.ErrTaskNotFound)
	_, err := s.d.Wait(s.limit(), c.ID)
	require.ErrorIs(s, err, driver.ErrTaskNotFound)
}

func (s *suite) waitMany() {
	c := s.task("wait/many/0", s.cfg.Sleep)
	s.start(c)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			res, err := s.d.Wait(s.limit(), c.ID)
			if want := s.terminated(); err != nil || res != want {
				s.Errorf("wait before the exit: %+v, %v", res, err)
			}
		})
	}
	require.NoError(s, s.d.Stop(s.limit(), c.ID, "SIGTERM", 30*time.Second))
	wg.Wait()
	for range 3 {
		require.Equal(s, s.terminated(), s.wait(c.ID), "wait after the exit")
	}
}

func (s *suite) waitContext() {
	c := s.task("wait/context/0", s.cfg.Sleep)
	s.start(c)
	ctx, cancel := context.WithCancelCause(s.limit())
	why := errors.New("no more interest")
	time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	_, err := s.d.Wait(ctx, c.ID)
	require.ErrorIs(s, err, why, "the cause of the context")
	if _, ok := s.d.(driver.Signaler); ok && s.d.Info().Capabilities.SendSignals {
		require.NoError(s, s.d.(driver.Signaler).Signal(s.limit(), c.ID, "SIGKILL"), "the task lives on")
		require.Equal(s, driver.ExitResult{Code: 128 + 9, Signal: 9}, s.wait(c.ID))
	}
}

func (s *suite) destroy() {
	c := s.task("destroy/forced/0", s.cfg.Sleep)
	h := s.start(c)
	require.ErrorIs(s, s.d.Destroy(s.limit(), ref(c, h), false), driver.ErrTaskRunning)
	require.NoError(s, s.d.Destroy(s.limit(), ref(c, h), true))
	s.left(c)
	s.gone(s.d.Destroy(s.limit(), ref(c, h), true))
	s.gone(s.d.Destroy(s.limit(), ref(c, h), false))

	c = s.task("destroy/parallel/0", s.cfg.Sleep)
	h = s.start(c)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { s.gone(s.d.Destroy(s.limit(), ref(c, h), true)) })
	}
	wg.Wait()
	s.left(c)
}

// gone accepts what a repeated Destroy may answer.
func (s *suite) gone(err error) {
	s.Helper()
	if err != nil && !errors.Is(err, driver.ErrTaskNotFound) {
		s.Errorf("destroying again: %v", err)
	}
}

func (s *suite) destroyByProof() {
	c := s.task("destroy/proof/0", s.cfg.Sleep)
	h := s.start(c)
	s.renew()
	require.NoError(s, s.d.Destroy(s.limit(), ref(c, h), true), "the handle is proof enough for a driver that never saw the task")
	s.left(c)
	require.ErrorIs(s, s.d.Recover(s.limit(), h), driver.ErrTaskNotFound)
}

func (s *suite) destroyUnproven() {
	err := s.d.Destroy(s.limit(), driver.TaskRef{ID: "destroy/unknown/0"}, true)
	require.ErrorIs(s, err, driver.ErrTaskNotFound)
}

func (s *suite) unknown() {
	const id = "unknown/task/0"
	_, err := s.d.Wait(s.limit(), id)
	require.ErrorIs(s, err, driver.ErrTaskNotFound)
	require.ErrorIs(s, s.d.Stop(s.limit(), id, "SIGTERM", time.Second), driver.ErrTaskNotFound)
	if sig, ok := s.d.(driver.Signaler); ok {
		require.ErrorIs(s, sig.Signal(s.limit(), id, "SIGTERM"), driver.ErrTaskNotFound)
	}
	if i, ok := s.d.(driver.Inspector); ok {
		_, err := i.Inspect(s.limit(), id)
		require.ErrorIs(s, err, driver.ErrTaskNotFound)
	}
}

func (s *suite) signals() {
	sig, ok := s.d.(driver.Signaler)
	require.Equal(s, s.d.Info().Capabilities.SendSignals, ok, "the capability says whether the driver is a Signaler")
	if !ok {
		s.Skip("this driver sends no signals")
	}
	c := s.task("signals/task/0", s.cfg.Sleep)
	s.start(c)
	for _, bad := range []string{"", "SIGNOTHING", "9x"} {
		err := sig.Signal(s.limit(), c.ID, bad)
		require.ErrorIs(s, err, driver.ErrUnknownSignal)
		require.ErrorContains(s, err, "SIGTERM", "the error lists the names that are known")
	}
	require.NoError(s, sig.Signal(s.limit(), c.ID, "SIGKILL"))
	require.Equal(s, driver.ExitResult{Code: 128 + 9, Signal: 9}, s.wait(c.ID))
}

func (s *suite) many() {
	var wg sync.WaitGroup
	for i := range 8 {
		c := s.task(fmt.Sprintf("many/task%d/0", i), s.cfg.Sleep)
		if i%2 == 0 {
			c.Config = s.cfg.Exit(i)
		}
		wg.Go(func() {
			h, err := s.d.Start(s.limit(), c)
			if err != nil {
				s.Errorf("start %s: %v", c.ID, err)
				return
			}
			want := driver.ExitResult{Code: i}
			if i%2 != 0 {
				want = s.terminated()
				if err := s.d.Stop(s.limit(), c.ID, "SIGTERM", 30*time.Second); err != nil {
					s.Errorf("stop %s: %v", c.ID, err)
				}
			}
			if res, err := s.d.Wait(s.limit(), c.ID); err != nil || res != want {
				s.Errorf("%s ended with %+v, %v; want %+v", c.ID, res, err, want)
			}
			if err := s.d.Destroy(s.limit(), ref(c, h), true); err != nil {
				s.Errorf("destroy %s: %v", c.ID, err)
			}
			s.left(c)
		})
	}
	wg.Wait()
}
