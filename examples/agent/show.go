// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nodekeep/nodekeep/api"
)

var psCommand = command{
	name: "ps", args: "[ALLOC]", short: "shows allocs and their tasks",
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, args []string) error {
			if len(args) > 1 {
				return usage("ps takes one ALLOC at most: see nodekeep ps --help")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			list := []api.Alloc{}
			if len(args) == 1 {
				in, err := c.Inspect(ctx, args[0])
				if err != nil {
					return err
				}
				list = append(list, in.Alloc)
			} else if list, err = c.Allocs(ctx); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(list)
			}
			if err := printAllocs(a.stdout, list, time.Now()); err != nil {
				return err
			}
			return a.tellDegraded(ctx, c, list)
		}
	},
}

var inspectCommand = command{
	name: "inspect", args: "ALLOC", short: "shows everything about one alloc",
	long: "What is shown holds the environment of the tasks in clear.",
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, args []string) error {
			if len(args) != 1 {
				return usage("inspect takes one ALLOC: see nodekeep inspect --help")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			in, err := c.Inspect(ctx, args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(in)
			}
			return printInspection(a.stdout, in, time.Now())
		}
	},
}

var versionCommand = command{
	name: "version", short: "shows the version of this program",
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		return func(_ context.Context, args []string) error {
			if len(args) > 0 {
				return usage("version takes no arguments")
			}
			v := thisVersion()
			if a.json {
				return a.printJSON(v)
			}
			fmt.Fprintf(a.stdout, "nodekeep %s\ncommit   %s\ngo       %s\nprotocol %d\nstate    %d\n", v.Version, v.Commit, v.Go, v.Protocol, v.State)
			return nil
		}
	},
}

// version is what "version" prints.
type version struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Go       string `json:"go"`
	Protocol int    `json:"protocol"` // between agent and supervisor
	State    int    `json:"state"`    // of the layout of the state file
}

func thisVersion() version {
	v := version{Version: "devel", Commit: "unknown", Go: runtime.Version(), Protocol: 1, State: 1}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v.Commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			v.Commit += " (changed)"
		}
	}
	return v
}

// client is a client of the agent of the data directory.
func (a *app) client() (*api.Client, error) {
	dir, err := a.dataDir()
	if err != nil {
		return nil, err
	}
	return api.Dial(socketPath(dir)), nil
}

// socketPath is where the agent of a data directory serves.
func socketPath(dataDir string) string { return filepath.Join(dataDir, "agent.sock") }

// printAllocs prints a row for each task.
func printAllocs(w io.Writer, list []api.Alloc, now time.Time) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "no allocs")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "ALLOC\tJOB\tGROUP\tSTATUS\tTASK\tSTATE\tPID\tRESTARTS\tSINCE\tEXIT")
	width := idWidth(list)
	for i := range list {
		al := &list[i]
		head := []string{clean(short(al.ID, width)), clean(al.Job), fmt.Sprintf("%s[%d]", clean(al.Group), al.Index), status(al)}
		if len(al.Tasks) == 0 {
			fmt.Fprintln(tw, strings.Join(head, "\t"))
		}
		for _, t := range al.Tasks {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", strings.Join(head, "\t"), clean(t.Name), t.State, dash(t.PID), t.Restarts, since(t, now), exit(t))
			head = []string{"", "", "", ""}
		}
	}
	return tw.Flush()
}

// tellDegraded says on stderr what the disk does not take, and what that means.
func (a *app) tellDegraded(ctx context.Context, c *api.Client, list []api.Alloc) error {
	why, err := c.Degraded(ctx)
	if err != nil {
		return err
	}
	if why != "" {
		a.warn("warning: %s; the node goes on and tries again", why)
	}
	if slices.ContainsFunc(list, func(al api.Alloc) bool { return al.Degraded }) {
		a.warn("warning: %s", degradedText)
	}
	return nil
}

// degradedText is what is true of allocs that are shown as degraded.
const degradedText = "the state of degraded allocs cannot be written: what runs goes on, nothing new is started: make room on the disk, it is tried again"

// idWidth is how many characters tell the ids apart, eight at least.
func idWidth(list []api.Alloc) int {
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	slices.Sort(ids)
	width := 8
	for i := 1; i < len(ids); i++ {
		n := 0
		for n < min(len(ids[i-1]), len(ids[i])) && ids[i-1][n] == ids[i][n] {
			n++
		}
		width = max(width, n+1)
	}
	return width
}

func short(id string, width int) string { return id[:min(len(id), width)] }

// status is the status, and what is wanted where that is another thing.
func status(al *api.Alloc) string {
	switch {
	case al.Problem != "":
		return string(al.Status) + " (unreadable record)"
	case al.Degraded:
		return string(al.Status) + " (degraded)"
	case al.Healthy != nil && !*al.Healthy && !al.Finished():
		return string(al.Status) + " (unhealthy)"
	case al.Finished() || al.Desired == "run":
		return string(al.Status)
	}
	return fmt.Sprintf("%s (%s wanted)", al.Status, al.Desired)
}

func dash(pid int) string {
	if pid == 0 {
		return "-"
	}
	return strconv.Itoa(pid)
}

// since is how long the task has been in its state.
func since(t api.Task, now time.Time) string {
	from := t.StartedAt
	if t.FinishedAt != nil {
		from = t.FinishedAt
	}
	if from == nil || t.State == "pending" { // its last start says nothing of the pause it is in
		return "-"
	}
	return age(now.Sub(*from))
}

// timeForm is how people are shown times, in their zone and with it; JSON has
// nanoseconds, and UTC.
const timeForm = "2006-01-02T15:04:05.000Z07:00"

func stamp(t time.Time) string { return t.Local().Format(timeForm) }

// age is a duration in its largest unit.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func exit(t api.Task) string {
	switch {
	case t.ExitCode == nil:
		return "-"
	case t.OOMKilled:
		return fmt.Sprintf("%d (out of memory)", *t.ExitCode)
	case t.Signal != 0:
		return fmt.Sprintf("%d (signal %d)", *t.ExitCode, t.Signal)
	}
	return strconv.Itoa(*t.ExitCode)
}

// taskLine is how a task is, on one line.
func taskLine(t api.Task, now time.Time) string {
	head := fmt.Sprintf("%s (%s)", t.State, t.Phase)
	switch {
	case t.StartedAt == nil && t.Attempt > 0: // attempts count from 0
		return fmt.Sprintf("%s, never started in %d tries", head, t.Attempt+1)
	case t.StartedAt == nil && t.State == "dead":
		return head + ", never started"
	case t.StartedAt == nil:
		return head + ", not started yet"
	}
	return fmt.Sprintf("%s, pid %s, %s, exit %s, for %s", head, dash(t.PID), count(t.Restarts, "restart"), exit(t), since(t, now))
}

func printInspection(w io.Writer, in api.Inspection, now time.Time) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(tw, "%s\t%s\n", name, clean(oneLine(value)))
		}
	}
	row("alloc", in.ID)
	row("name", in.Name)
	row("namespace", in.Namespace)
	row("type", in.Type)
	row("status", string(in.Status))
	row("desired", string(in.Desired))
	row("description", in.Description)
	row("problem", in.Problem)
	if h := in.Healthy; h != nil {
		row("healthy", strings.TrimSuffix(fmt.Sprintf("%t: %s", *h, in.Unhealthy), ": "))
	}
	row("created", stamp(in.CreatedAt))
	if in.FinishedAt != nil {
		row("finished", stamp(*in.FinishedAt))
	}
	row("directory", in.Dir)
	if in.Degraded {
		row("degraded", "its state cannot be written to disk; it is tried again")
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, t := range in.Tasks {
		fmt.Fprintf(w, "\ntask %s: %s\n", clean(t.Name), taskLine(t, now))
		if t.Reason != "" {
			fmt.Fprintf(w, "  %s\n", clean(oneLine(t.Reason)))
		}
		if in.Spec != nil {
			if st := in.Spec.Task(t.Name); st != nil {
				fmt.Fprintf(w, "  driver %s  %s\n", clean(st.Driver), clean(string(plainJSON(st.Config))))
				for _, k := range slices.Sorted(maps.Keys(st.Env)) {
					fmt.Fprintf(w, "  env %s=%s\n", clean(k), clean(st.Env[k]))
				}
			}
		}
		for _, e := range in.Events[t.Name] {
			fmt.Fprintf(w, "  %s  %-12s %s\n", stamp(e.Time), clean(e.Kind), clean(oneLine(e.Message)))
		}
	}
	return nil
}
