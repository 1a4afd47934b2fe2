// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocdir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/nodekeep/nodekeep/spec"
)

// ErrOccupied says that an alloc has data already where another's should go.
var ErrOccupied = errors.New("allocdir: there is data already")

// The disk of an alloc is what outlives it in the alloc that takes its place:
//
//	alloc/data/      of all tasks
//	<task>/local/    of each task that both allocs have
//
// Names are slash-separated, as in Open.
func diskParts(tasks []string) ([]string, error) {
	parts := []string{path.Join(sharedName, dataName)}
	for _, t := range tasks {
		if err := spec.CheckName(t); err != nil {
			return nil, fmt.Errorf("allocdir: task name: %w", err)
		}
		parts = append(parts, path.Join(t, localName))
	}
	return parts, nil
}

// TakeOver moves the disk of other allocs (alloc/data, and local of the tasks named)
// into d, by renaming: it costs the same for any amount of data and needs all below
// one Root. All must have been Built and nothing may run in any. Each part comes
// from the first of the line that has something in it: one that could not take over
// from its predecessor passes the predecessor's on. Repeating it after a crash goes
// on where it was. Data of the first where d has some already is ErrOccupied.
func (d *Dir) TakeOver(ctx context.Context, line []*Dir, tasks []string) error {
	root, err := os.OpenRoot(d.cfg.Root)
	if err != nil {
		return fmt.Errorf("allocdir: open root: %w", err)
	}
	defer root.Close()
	for i, from := range line {
		if d.cfg.Root != from.cfg.Root {
			return fmt.Errorf("allocdir: %s and %s have different roots", from.path, d.path)
		}
		if err := settle(ctx, root, from.cfg.AllocID, d.cfg.AllocID, tasks, i > 0); err != nil {
			return err
		}
	}
	return nil
}

// settle renames the parts below one directory of root to where they belong below
// another. A place that is taken is an error, or passed over.
func settle(ctx context.Context, root *os.Root, from, to string, tasks []string, pass bool) error {
	parts, err := diskParts(tasks)
	if err != nil {
		return err
	}
	for _, part := range parts {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := rename(root, filepath.Join(from, filepath.FromSlash(part)), filepath.Join(to, filepath.FromSlash(part)))
		if err != nil && (!pass || !errors.Is(err, ErrOccupied)) {
			return fmt.Errorf("allocdir: move %s of %s: %w", part, from, err)
		}
	}
	return nil
}

// rename moves a directory to a place that is free or an empty directory. What is
// no directory is not moved: a task may have put a link in its place.
func rename(root *os.Root, from, to string) error {
	fi, err := root.Lstat(from)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !fi.IsDir():
		return nil
	}
	switch empty, err := emptyDir(root, from); {
	case err != nil:
		return err
	case empty:
		return nil // also a later call that finds what was made afresh
	}
	if err := root.Mkdir(filepath.Dir(to), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	switch empty, err := emptyDir(root, to); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !empty:
		return fmt.Errorf("%w: %s", ErrOccupied, filepath.Join(root.Name(), to))
	default: // not every system renames over an empty directory
		if err := root.Remove(to); err != nil {
			return err
		}
	}
	return root.Rename(from, to)
}

func emptyDir(root *os.Root, name string) (bool, error) {
	fi, err := root.Lstat(name)
	if err != nil {
		return false, err
	}
	if !fi.IsDir() {
		return false, fmt.Errorf("%w: %s is in the way: move it away", ErrNotDir, filepath.Join(root.Name(), name))
	}
	f, err := root.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = f.Readdirnames(1)
	if err == io.EOF {
		return true, nil
	}
	return false, err
}

// DiskLimits bound what Receive takes; 0 is the default of each.
type DiskLimits struct {
	Bytes   int64 // of all files together; 16 GiB
	Entries int   // files, directories and links; 1,000,000
}

func (l DiskLimits) orDefault() DiskLimits {
	if l.Bytes <= 0 {
		l.Bytes = 16 << 30
	}
	if l.Entries <= 0 {
		l.Entries = 1_000_000
	}
	return l
}

// The staging directories of Receive, in alloc/, where no task may write.
const (
	arriving = ".arriving" // not whole yet: worth nothing
	arrived  = ".arrived"  // whole: only to be put in its place
)

// Receive reads what Send wrote and puts it into d, which must have been Built; no
// task of d may run yet. Only the tasks named get a local. It is all or nothing: an
// archive that breaks a rule (ArchiveError), does not end as one of Send does, or is
// larger than the limits leaves nothing behind. Once the last byte is there
// the data survives a crash; Received then carries on without the stream. The
// reader is not closed; ctx is looked at between entries and reads.
func (d *Dir) Receive(ctx context.Context, r io.Reader, tasks []string, lim DiskLimits) error {
	if done, err := d.Received(ctx, tasks); done || err != nil {
		return err
	}
	shared, err := os.OpenRoot(d.Shared())
	if err != nil {
		return fmt.Errorf("allocdir: receive: %w", err)
	}
	defer shared.Close()
	if err := shared.RemoveAll(arriving); err != nil {
		return fmt.Errorf("allocdir: receive: %w", err)
	}
	if err := unpack(ctx, shared, r, lim.orDefault()); err != nil {
		return errors.Join(err, shared.RemoveAll(arriving))
	}
	if err := flush(shared); err != nil {
		return errors.Join(fmt.Errorf("allocdir: receive: %w", err), shared.RemoveAll(arriving))
	}
	if err := shared.Rename(arriving, arrived); err != nil {
		return fmt.Errorf("allocdir: receive: %w", err)
	}
	_, err = d.Received(ctx, tasks)
	return err
}

// Received ends a Receive that was interrupted when all data was there, and says
// whether there was one.
func (d *Dir) Received(ctx context.Context, tasks []string) (bool, error) {
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return false, fmt.Errorf("allocdir: receive: %w", err)
	}
	defer root.Close()
	staged := filepath.Join(sharedName, arrived)
	if _, err := root.Lstat(staged); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err := settle(ctx, root, staged, ".", tasks, false); err != nil {
		return true, err
	}
	if err := root.RemoveAll(staged); err != nil {
		return true, fmt.Errorf("allocdir: receive: %w", err)
	}
	return true, nil
}

// flush makes what was written last, before it is declared whole.
func flush(dir *os.Root) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	return syncFS(f)
}

// sortedTasks drops doubles.
func sortedTasks(tasks []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(tasks)))
}
