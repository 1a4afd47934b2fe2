// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/nodekeep/nodekeep"
)

var statsCommand = command{
	name: "stats", args: "ALLOC [TASK]", short: "what the tasks of an alloc use: processor, memory, processes",
	long: "CPU is percent of one core. ALLOCATED is what the job reserves. A dash is what this machine does not measure; --json has the rest.",
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		follow := fs.Bool("f", false, "go on until the tasks have ended")
		interval := fs.Duration("interval", time.Second, "between two samples with -f: `D`, such as 5s")
		return func(ctx context.Context, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usage("stats takes ALLOC and perhaps TASK: see nodekeep stats --help")
			}
			if *interval <= 0 {
				return usage("--interval %s: must be above 0", *interval)
			}
			task := ""
			if len(args) == 2 {
				task = args[1]
			}
			return a.stats(ctx, args[0], task, *interval, *follow)
		}
	},
}

func (a *app) stats(ctx context.Context, alloc, task string, interval time.Duration, follow bool) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	const row = "%-*s  %-16s  %7s  %10s  %10s  %10s  %5s\n"
	first := true
	for u, err := range c.Stats(ctx, alloc, task, interval, follow) {
		switch {
		case err != nil:
			return err
		case a.json:
			u.Time = u.Time.UTC()
			err = encode(a.stdout, u, "")
		default:
			if first {
				fmt.Fprintf(a.stdout, row, len(timeForm), "TIME", "TASK", "CPU", "MEMORY", "MAX", "ALLOCATED", "PIDS")
			}
			err = printUsage(a.stdout, row, &u)
		}
		if first = false; err != nil {
			return err
		}
	}
	return nil
}

func printUsage(w io.Writer, row string, u *nodekeep.TaskUsage) error {
	known := func(list []string, name, text string) string {
		if !slices.Contains(list, name) {
			return "-"
		}
		return text
	}
	_, err := fmt.Fprintf(w, row, len(timeForm), stamp(u.Time), clean(u.Task),
		known(u.CPU.Measured, "percent", fmt.Sprintf("%.1f%%", u.CPU.Percent)),
		known(u.Memory.Measured, "usage", inUnits(u.Memory.Usage)), known(u.Memory.Measured, "max", inUnits(u.Memory.Max)),
		inUnits(u.Memory.Allocated), fmt.Sprint(u.Pids))
	return err
}

// inUnits is a size as people read it.
func inUnits(n uint64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/(1<<10), 0
	for ; f >= 1<<10 && i < len(units)-1; i++ {
		f /= 1 << 10
	}
	return fmt.Sprintf("%.1f %ciB", f, units[i])
}
