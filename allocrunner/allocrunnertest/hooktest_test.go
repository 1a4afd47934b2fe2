// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunnertest_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/allocrunner/allocrunnertest"
	"github.com/nodekeep/nodekeep/spec"
)

// ports is the world of the hooks below: who holds which port.
type ports map[int]string

func (p ports) take(who string) int {
	for n := 8000; ; n++ {
		if p[n] == "" || p[n] == who {
			p[n] = who
			return n
		}
	}
}

func (p ports) left() []string {
	var all []string
	for _, n := range slices.Sorted(maps.Keys(p)) {
		all = append(all, fmt.Sprintf("%d: %s", n, p[n]))
	}
	return all
}

type request = allocrunner.Request

// hooks are one that does it right and others that do not.
func hooks(p ports) map[string]allocrunner.AnyHook {
	take := func(_ context.Context, r *request, port *int) error {
		*port = p.take(r.Alloc.ID)
		return r.Checkpoint()
	}
	give := func(_ context.Context, _ *request, port *int) error {
		delete(p, *port)
		return nil
	}
	return map[string]allocrunner.AnyHook{
		"good":  &allocrunner.Hook[int]{Name: "port", Prerun: take, Postrun: give},
		"keeps": &allocrunner.Hook[int]{Name: "port", Prerun: take},
		"gives too early": &allocrunner.Hook[int]{Name: "port", Prerun: take, Prekill: give, Shutdown: give,
			Postrun: func(_ context.Context, r *request, port *int) error {
				if p[*port] != r.Alloc.ID {
					return fmt.Errorf("port %d is not mine", *port)
				}
				delete(p, *port)
				return nil
			}},
		"takes another each time": &allocrunner.Hook[int]{Name: "port", Postrun: give,
			Prerun: func(_ context.Context, r *request, port *int) error {
				if *port == 0 {
					*port = p.take(fmt.Sprint(r.Alloc.ID, len(p)))
				}
				return nil
			}},
		"forgets a goroutine": &allocrunner.Hook[int]{Name: "port", Postrun: give,
			Prerun: func(ctx context.Context, r *request, port *int) error {
				go func() { <-make(chan int) }()
				return take(ctx, r, port)
			}},
	}
}

func setup(which string) func(testing.TB) (allocrunner.HookFunc, func() []string) {
	return func(testing.TB) (allocrunner.HookFunc, func() []string) {
		p := ports{}
		return func(*spec.Alloc) (allocrunner.AnyHook, error) { return hooks(p)[which], nil }, p.left
	}
}

func TestGoodHook(t *testing.T) {
	allocrunnertest.HookTest(t, allocrunnertest.Config{Setup: setup("good")})
}

const badHook = "NODEKEEP_TEST_BAD_HOOK"

// The same test fails for hooks that break a promise. It runs in a process of its
// own, since a test cannot watch another fail.
func TestBadHooks(t *testing.T) {
	if which := os.Getenv(badHook); which != "" {
		allocrunnertest.HookTest(t, allocrunnertest.Config{Setup: setup(which)})
		return
	}
	for which, why := range map[string]string{
		"keeps":                   "the hook has left",
		"gives too early":         "is not mine",
		"takes another each time": "the hook has left",
		"forgets a goroutine":     "deadlock",
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBadHooks$", "-test.timeout=60s")
		cmd.Env = append(os.Environ(), badHook+"="+which)
		out, err := cmd.CombinedOutput()
		require.Error(t, err, "%s: HookTest is content with it\n%s", which, out)
		require.Contains(t, string(out), why, which)
	}
}
