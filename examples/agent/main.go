// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Command nodekeep is a node for one machine, and the tool to look at it. It is
// an example of a host of the library, and small enough to be read in one go:
//
//	main.go    commands, help, errors and exit codes
//	flags.go   flags before, between and after arguments
//	output.go  JSON, errors and warnings
//	run.go     an agent for one job in the foreground        ─┐ both embed
//	serve.go   an agent with its API on a unix socket        ─┘ nodekeep.Agent
//	store.go   the jobs that serve was told to run, on disk
//	plugins.go drivers that are programs of their own; the node
//	ops.go, show.go, logs.go, apply.go, exec.go, stats.go   speak to serve through package api
//
// The data directory of serve:
//
//	<data>/state.db        what the agent knows
//	<data>/alloc/<id>/     directories of the allocs
//	<data>/jobs/           what was applied (see store.go)
//	<data>/agent.sock      the API
//	<data>/run/<ns>.<job>/ the data directory of a job that "run" runs
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/nodekeep/nodekeep/api"
)

// app is one invocation.
type app struct {
	global
	stdout, stderr io.Writer
	env            func(string) string
	person         func(io.Writer) bool // whether a person looks at an output; nil: whether it is a terminal
}

// next tells a person who looks at stderr what to try after this.
func (a *app) next(format string, args ...any) {
	look := a.person
	if look == nil {
		look = isTerminal
	}
	if !a.json && look(a.stderr) {
		fmt.Fprintf(a.stderr, "next: %s\n", clean(fmt.Sprintf(format, args...)))
	}
}

// command is one row of the help. bind declares the command's flags and returns
// what runs it once they are parsed.
type command struct {
	name, args, short string
	long              string
	bind              func(a *app, fs *flag.FlagSet) func(ctx context.Context, args []string) error
}

// exitCode is the end of a command whose message was printed already, if any.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit %d", int(c)) }

func main() {
	a := &app{stdout: os.Stdout, stderr: os.Stderr, env: os.Getenv}
	a.data = defaultData(os.Geteuid(), os.Getenv)
	os.Exit(a.main(context.Background(), os.Args[1:]))
}

// main runs the command line and returns the exit code: 2 for wrong use, 1 for
// a failure, the command's own otherwise.
func (a *app) main(ctx context.Context, args []string) int {
	err := a.dispatch(ctx, args)
	a.json = a.json || err != nil && wantsJSON(args)
	return a.fail(err)
}

// parts takes joined errors apart, so that each gets its own line; none of nil.
func parts(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })         // only the outermost
	if !ok || fmt.Sprintf("%T", err) != "*errors.joinError" { // %w twice is one error
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, parts(e)...)
	}
	return all
}

// explain adds what to do where the error itself cannot know it.
func (a *app) explain(err error) string {
	var e *api.Error
	switch {
	case errors.As(err, &e) && e.Hint != "":
		return e.Error()
	case errors.Is(err, api.ErrNoAgent):
		return fmt.Sprintf("%s: start one with \"nodekeep serve%s\", or name another node with --data", api.Plain(err), a.dataFlag())
	}
	return api.Plain(err)
}

// dataFlag is the --data flag that leads to the same node, if it is needed.
func (a *app) dataFlag() string {
	if a.data == defaultData(os.Geteuid(), a.env) {
		return ""
	}
	return " --data " + a.data
}

func (a *app) dispatch(ctx context.Context, args []string) error {
	name, args, err := a.split(args)
	if errors.Is(err, errHelp) || (err == nil && name == "help" && len(args) == 0) {
		a.help()
		return nil
	}
	if err != nil {
		return err
	}
	if name == "" {
		a.help()
		return usage("no command: see above")
	}
	if name == "help" {
		name, args = args[0], []string{"--help"}
	}
	cmd := find(name)
	if cmd == nil {
		return unknownCommand(name)
	}
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	a.bind(fs)
	run := cmd.bind(a, fs)
	pos, err := parse(fs, name, args)
	if errors.Is(err, errHelp) {
		a.commandHelp(cmd, fs)
		return nil
	}
	if err != nil {
		return err
	}
	return run(ctx, pos)
}

// split takes the command's name out of the arguments; flags that every command
// has may stand before it.
func (a *app) split(args []string) (name string, rest []string, err error) {
	fs := flag.NewFlagSet("nodekeep", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	version := fs.Bool("version", false, "")
	a.bind(fs)
	if err := fs.Parse(args); err != nil {
		return "", nil, flagError("", err)
	}
	if *version {
		return "version", fs.Args(), nil
	}
	if fs.NArg() == 0 {
		return "", nil, nil
	}
	return fs.Arg(0), fs.Args()[1:], nil
}

func find(name string) *command {
	for _, c := range commands() {
		if c.name == name {
			return &c
		}
	}
	return nil
}

// commands is every command in the order of the help.
func commands() []command {
	return []command{
		runCommand, serveCommand, applyCommand,
		psCommand, inspectCommand, explainCommand, eventsCommand, logsCommand, statsCommand,
		stopCommand, restartCommand, signalCommand, execCommand, gcCommand, backupCommand, commitUpgradeCommand,
		nodeCommand, pluginsCommand,
		jobCommand, versionCommand,
	}
}

func unknownCommand(name string) error {
	var names []string
	for _, c := range commands() {
		names = append(names, c.name)
	}
	if best := closest(name, names); best != "" {
		return usage("unknown command %q: did you mean %q? See nodekeep --help", name, best)
	}
	return usage("unknown command %q: see nodekeep --help", name)
}

// closest is the word that was most likely meant by name; empty if none is near.
func closest(name string, words []string) string {
	best, dist := "", 4
	for _, w := range words {
		// Words that begin alike may differ more.
		limit := max(1, len(name)/3)
		if name != "" && w != "" && name[0] == w[0] {
			limit++
		}
		if d := distance(name, w); d <= limit && d < dist || len(name) > 1 && strings.HasPrefix(w, name) {
			best, dist = w, d
		}
	}
	return best
}

// distance is the number of edits between two words (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

func (a *app) help() {
	fmt.Fprint(a.stdout, "nodekeep runs jobs on this machine. Tasks outlive the agent: kill it, start it again, they go on.\n\n")
	fmt.Fprint(a.stdout, "Usage: nodekeep COMMAND [FLAG…] [ARGUMENT…]\n\nCommands:\n")
	for _, c := range commands() {
		fmt.Fprintf(a.stdout, "  %-9s %s\n", c.name, c.short)
	}
	fmt.Fprintf(a.stdout, "\nFlags of every command:\n")
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	a.bind(fs)
	printFlags(a.stdout, fs)
	fmt.Fprint(a.stdout, `
Try it:
  nodekeep run examples/agent/jobs/hello.hcl      a job in the foreground
  nodekeep serve --enable-raw-exec                a node, to apply jobs to

ALLOC is an id, the unique beginning of one, JOB or "JOB.GROUP[index]" where that is one alloc.
"nodekeep COMMAND --help" tells more. Exit codes: 0 done, 1 failed, 2 wrong use.
`)
}

func (a *app) commandHelp(c *command, fs *flag.FlagSet) {
	fmt.Fprintf(a.stdout, "Usage: nodekeep %s\n\n%s.\n", strings.TrimSpace(c.name+" [FLAG…] "+c.args), strings.TrimSuffix(c.short, "."))
	if c.long != "" {
		fmt.Fprintf(a.stdout, "\n%s\n", strings.TrimSpace(c.long))
	}
	fmt.Fprint(a.stdout, "\nFlags (before or after the arguments):\n")
	printFlags(a.stdout, fs)
}

// printFlags prints flags in two columns, long names with two dashes.
func printFlags(w io.Writer, fs *flag.FlagSet) {
	fs.VisitAll(func(f *flag.Flag) {
		arg, text := flag.UnquoteUsage(f)
		name := "--" + f.Name
		if len(f.Name) == 1 {
			name = "-" + f.Name
		}
		if arg != "" {
			name += " " + arg
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "0s" {
			text += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(w, "  %-26s %s\n", name, text)
	})
}
