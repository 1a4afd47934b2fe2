// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/nodekeep/nodekeep/api"
)

var logsCommand = command{
	name: "logs", args: "ALLOC [TASK]", short: "prints the output of a task",
	long: "TASK may be left out when there is one. With -f it follows until the alloc has finished. With --json each line is one of run --json.",
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		var q api.LogQuery
		fs.BoolVar(&q.Follow, "f", false, "follow: go on with what is written from now on")
		lines := fs.Int("n", -1, "only the last `N` lines; 0 with -f is only what comes")
		fs.BoolVar(&q.Stderr, "stderr", false, "stderr instead of stdout")
		return func(ctx context.Context, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usage("logs takes ALLOC and perhaps TASK: see nodekeep logs --help")
			}
			if len(args) == 2 {
				q.Task = args[1]
			}
			switch {
			case *lines > 0:
				q.Lines = *lines
			case *lines == 0:
				q.Lines = -1
			case *lines < -1:
				return usage("-n %d: use 0 or more", *lines)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			q.Lost = a.tellLost
			r, err := c.Logs(ctx, args[0], q)
			if err != nil {
				return err
			}
			defer r.Close()
			if a.json {
				return a.logLines(ctx, c, args[0], q, r)
			}
			_, err = io.Copy(a.stdout, r)
			return err
		}
	},
}

// logLines prints each line of output as JSON, as run --json does; of a line
// longer than 64 KiB the rest comes as the next.
func (a *app) logLines(ctx context.Context, c *api.Client, alloc string, q api.LogQuery, r io.Reader) error {
	in, err := c.Inspect(ctx, alloc)
	if err != nil {
		return err
	}
	line := outputLine{Alloc: in.ID, Task: q.Task, Stream: "stdout"}
	if q.Stderr {
		line.Stream = "stderr"
	}
	if line.Task == "" && len(in.Tasks) == 1 {
		line.Task = in.Tasks[0].Name
	}
	buf := bufio.NewReaderSize(r, 64<<10)
	for {
		text, err := buf.ReadSlice('\n')
		if len(text) > 0 {
			line.Line = strings.TrimSuffix(string(text), "\n")
			if err := encode(a.stdout, line, ""); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
}

// lostOutput says in JSON that output is missing.
type lostOutput struct {
	Alloc  string `json:"alloc,omitempty"`
	Task   string `json:"task,omitempty"`
	Stream string `json:"stream,omitempty"`
	Files  int64  `json:"lost_files"`
	Bytes  int64  `json:"lost_bytes"` // at most
}

// tellLost says on stderr that output is missing at this place.
func (a *app) tellLost(files, bytes int64) {
	if a.json {
		_ = encode(a.stderr, lostOutput{Files: files, Bytes: bytes}, "")
		return
	}
	fmt.Fprintf(a.stderr, "nodekeep: %s\n", lostText(files, bytes))
}

func lostText(files, bytes int64) string {
	return fmt.Sprintf("… up to %d bytes (%d log files) were rotated away before they could be read", bytes, files)
}

var eventsCommand = command{
	name: "events", args: "[ALLOC]", short: "prints what happened to the allocs",
	long: "Each line begins with the event's token, which is what --since takes, and they come in the order of the tokens. With --json each line is one event.",
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		follow := fs.Bool("f", false, "follow: go on with what happens from now on")
		since := fs.String("since", "0", "only events after `TOKEN`, or after the cursor that --json shows")
		return func(ctx context.Context, args []string) error {
			if len(args) > 1 {
				return usage("events takes one ALLOC at most: see nodekeep events --help")
			}
			token, _, _ := strings.Cut(*since, "@")
			if _, err := strconv.ParseUint(token, 10, 64); err != nil {
				return usage("--since %q is no token: take one from the beginning of a line of events", *since)
			}
			alloc := ""
			if len(args) == 1 {
				alloc = args[0]
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			return a.printEvents(ctx, c, *since, alloc, *follow)
		}
	},
}

func (a *app) printEvents(ctx context.Context, c *api.Client, after, alloc string, follow bool) error {
	for e, err := range c.EventsFrom(ctx, after, alloc, follow) {
		if err != nil {
			return err
		}
		if a.json {
			err = encode(a.stdout, e, "")
		} else {
			err = printEvent(a.stdout, &e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func printEvent(w io.Writer, e *api.Event) error {
	_, err := fmt.Fprintf(w, "%6d  %s  %s  %-12s %s: %s\n", e.Token, stamp(e.Time),
		clean(short(e.Alloc, 8)), clean(e.Task), clean(e.Kind), clean(oneLine(e.Message)))
	return err
}
