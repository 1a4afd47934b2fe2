// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nodekeep/nodekeep/api"
)

var backupCommand = command{
	name: "backup", args: "FILE", short: "copies the node's state to a new file, while it runs",
	long: `The file holds what the node knows of its allocs, their environment in clear: it
is 0600. The jobs that were applied lie in the data directory, below jobs/, and
can be copied as they are.

To go back: stop the node, copy FILE over state.db in its data directory, start
it. In another data directory it is the same node, so only one of them may run.`,
	bind: func(a *app, _ *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, args []string) error {
			if len(args) != 1 {
				return usage("name the file to make: see nodekeep backup --help")
			}
			return a.backup(ctx, args[0])
		}
	},
}

func (a *app) backup(ctx context.Context, path string) error {
	if err := mustBeNew(path); err != nil {
		return err
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	n, err := writeBackup(ctx, c, path)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]any{"file": path, "bytes": n})
	}
	fmt.Fprintf(a.stdout, "%s: %d bytes\n", clean(path), n)
	return nil
}

func mustBeNew(path string) error {
	_, err := os.Lstat(path)
	switch {
	case err == nil:
		return fmt.Errorf("%s is there already: name another file, or remove it", path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

// writeBackup makes the file whole or not at all: beside it first, then under its
// name if nobody has taken that meanwhile.
func writeBackup(ctx context.Context, c *api.Client, path string) (n int64, err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".part-*")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	n, err = c.Backup(ctx, f)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return 0, err
	}
	switch err := os.Link(f.Name(), path); {
	case errors.Is(err, fs.ErrExist):
		return 0, mustBeNew(path)
	case err != nil:
		return 0, err
	}
	return n, syncDir(dir)
}
