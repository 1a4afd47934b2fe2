// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"flag"
	"time"
)

var explainCommand = command{
	name: "explain", args: "ALLOC [TASK]", short: "why an alloc is as it is, and what comes next",
	long: "For the alloc and each task: what it waits for, and what that waits for; what failed last; what will happen next, or would if it exited.",
	bind: func(a *app, _ *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usage("name an alloc, and a task if you like: see nodekeep explain --help")
			}
			return a.explainAlloc(ctx, append(args, "")[0], append(args, "")[1])
		}
	},
}

func (a *app) explainAlloc(ctx context.Context, ref, task string) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	why, err := c.Explain(ctx, ref, task)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(why)
	}
	return why.Write(a.stdout, time.Now(), clean)
}
