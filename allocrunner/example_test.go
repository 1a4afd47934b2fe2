// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner_test

import (
	"context"
	"fmt"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// A hook that leases an address for an alloc. The lease is taken and given back by
// the alloc's id, so doing either twice, as after a crash, is the same as once;
// allocrunnertest.HookTest proves it.
func ExampleHook() {
	type pool interface {
		Take(owner string) (addr string, err error)
		Give(owner string) error
	}
	type lease struct{ Addr string } // persisted

	hook := func(p pool) allocrunner.HookFunc {
		return func(a *spec.Alloc) (allocrunner.AnyHook, error) {
			return &allocrunner.Hook[lease]{
				Name: "address", Stage: allocrunner.StageNetwork,
				Prerun: func(_ context.Context, r *allocrunner.Request, l *lease) (err error) {
					l.Addr, err = p.Take(r.Alloc.ID)
					return err
				},
				Postrun: func(_ context.Context, r *allocrunner.Request, _ *lease) error {
					return p.Give(r.Alloc.ID)
				},
			}, nil
		}
	}
	_ = allocrunner.Config{Hooks: []allocrunner.HookFunc{hook(nil)}}
}

// A host without an agent runs an alloc by itself.
func ExampleNew() {
	run := func(ctx context.Context, cfg allocrunner.Config) error {
		r, err := allocrunner.New(cfg)
		if err != nil {
			return err
		}
		go func() {
			for s := range r.Watch(ctx) {
				fmt.Println(s.Status, s.Tasks["web"].State() == taskrunner.Running)
			}
		}()
		if err := r.Run(ctx); err != nil {
			return err // ctx ended: the tasks live on, the next New finds them
		}
		return r.Destroy(ctx)
	}
	_ = run
}
