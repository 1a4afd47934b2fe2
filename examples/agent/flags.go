// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// global holds the flags that every command takes, before or after its name.
type global struct {
	data     string
	json     bool
	logLevel string
	logJSON  bool
}

func (g *global) bind(fs *flag.FlagSet) {
	fs.Var(dirFlag{&g.data}, "data", "`DIR` where the node keeps its state")
	fs.BoolVar(&g.json, "json", g.json, "print JSON")
	fs.StringVar(&g.logLevel, "log-level", g.logLevel, "`LEVEL` of the log on stderr: trace, debug, info, warn, error or off")
	fs.BoolVar(&g.logJSON, "log-json", g.logJSON, "log in JSON")
}

// dirFlag is a flag that names a directory. An empty one is most likely a shell
// variable that is not set, and must not become the default or the working directory.
type dirFlag struct{ dir *string }

func (d dirFlag) String() string {
	if d.dir == nil {
		return ""
	}
	return *d.dir
}

func (d dirFlag) Set(s string) error {
	if s == "" {
		return errors.New("names no directory: name one, or leave the flag out for the default")
	}
	*d.dir = s
	return nil
}

// logger writes to stderr at the chosen level, or at def.
func (a *app) logger(def hclog.Level) (hclog.Logger, error) {
	level := def
	if a.logLevel != "" {
		if level = hclog.LevelFromString(a.logLevel); level == hclog.NoLevel {
			return nil, usage("unknown log level %q: use trace, debug, info, warn, error or off", a.logLevel)
		}
	}
	return hclog.New(&hclog.LoggerOptions{Name: "nodekeep", Level: level, Output: a.stderr, JSONFormat: a.logJSON, TimeFormat: timeForm}), nil
}

// defaultData is /var/lib/nodekeep for root, else nodekeep below the user's
// state directory; empty when no home is known.
func defaultData(uid int, env func(string) string) string {
	if uid == 0 {
		return "/var/lib/nodekeep"
	}
	if dir := env("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "nodekeep")
	}
	if home := env("HOME"); home != "" {
		return filepath.Join(home, ".local", "state", "nodekeep")
	}
	if dir, err := os.UserConfigDir(); err == nil { // Windows
		return filepath.Join(dir, "nodekeep")
	}
	return ""
}

// dataDir is the data directory, absolute.
func (g *global) dataDir() (string, error) {
	if g.data == "" {
		return "", usage("no home directory is known: name a data directory with --data DIR")
	}
	return filepath.Abs(g.data)
}

// usageError is wrong use of the command line: exit code 2.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

func usage(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// errHelp says that help was asked for.
var errHelp = errors.New("help")

// parse reads flags that may stand before, between or after the arguments; all
// that follows "--" is an argument. cmd is named in messages.
func parse(fs *flag.FlagSet, cmd string, args []string) (pos []string, err error) {
	fs.SetOutput(io.Discard)
	for {
		if err := fs.Parse(args); err != nil {
			return nil, flagError(cmd, err)
		}
		rest := fs.Args()
		if n := len(args) - len(rest); n > 0 && args[n-1] == "--" {
			return append(pos, rest...), nil
		}
		if len(rest) == 0 {
			return pos, nil
		}
		pos, args = append(pos, rest[0]), rest[1:]
	}
}

// flagError tells what package flag says in our words.
func flagError(cmd string, err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return errHelp
	}
	see := strings.TrimSpace("nodekeep "+cmd) + " --help"
	msg := err.Error()
	if name, ok := strings.CutPrefix(msg, "flag provided but not defined: -"); ok {
		return usage("unknown flag --%s: see %s", name, see)
	}
	// The flag package writes: invalid value "x" for flag -n: parse error.
	if rest, ok := strings.CutPrefix(msg, "invalid value "); ok {
		value, rest, _ := strings.Cut(rest, " for flag -")
		name, why, _ := strings.Cut(rest, ": ")
		if why == "parse error" {
			why = "is no number, or a duration without a unit such as 30s or 5m"
		}
		if len(name) > 1 {
			name = "-" + name
		}
		return usage("-%s %s: %s: see %s", name, value, why, see)
	}
	return usage("%s: see %s", msg, see)
}

// stringList is a flag that may be given several times.
type stringList []string

func (l *stringList) String() string     { return strings.Join(*l, ",") }
func (l *stringList) Set(s string) error { *l = append(*l, s); return nil }
