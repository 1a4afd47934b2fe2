// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// script runs a program of the user's at phases of a task's life, with the
// task's environment and, in HOOK_PHASE, the phase: prestart, poststart, prekill,
// exited (EXIT_CODE says how) or stop. A prestart that fails fails the task; what
// else fails is told as an event. It runs at least once: an agent that dies during
// it runs it again.
func script(program string, args ...string) taskrunner.HookFunc {
	run := func(ctx context.Context, r *taskrunner.Request, phase string, more ...string) error {
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env = append(r.HostEnv().List(), append(more, "HOOK_PHASE="+phase)...)
		cmd.Dir = r.Dir.Local
		cmd.WaitDelay = time.Second // a child that keeps its output open holds nobody up
		out, err := cmd.CombinedOutput()
		if err != nil && ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		if err != nil {
			return fmt.Errorf("%s in %s: %w: %s", program, phase, err, tail(out))
		}
		return nil
	}
	at := func(phase string) func(context.Context, *taskrunner.Request, *struct{}) error {
		return func(ctx context.Context, r *taskrunner.Request, _ *struct{}) error {
			if phase == "exited" && r.Exit != nil {
				return run(ctx, r, phase, "EXIT_CODE="+strconv.Itoa(r.Exit.Code))
			}
			return run(ctx, r, phase)
		}
	}
	return func(*spec.Alloc, *spec.Task) (taskrunner.AnyHook, error) {
		return &taskrunner.Hook[struct{}]{
			Name: "script",
			Prestart: func(ctx context.Context, r *taskrunner.Request, _ *struct{}) (c taskrunner.Contribution, err error) {
				if r.Restored { // the task runs already: it is not to be disturbed
					return c, nil
				}
				return c, run(ctx, r, "prestart")
			},
			Poststart: at("poststart"), Prekill: at("prekill"), Exited: at("exited"), Stop: at("stop"),
		}, nil
	}
}

// tail is the end of a program's output, for a message.
func tail(out []byte) string {
	const most = 512
	s := strings.TrimSpace(string(out))
	if len(s) > most {
		s = "…" + s[len(s)-most:]
	}
	return s
}
