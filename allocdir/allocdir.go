// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package allocdir makes, repairs and removes the directory tree of an alloc and
// lets people read in it without a way out.
//
//	<root>/                     0711
//	 └─ <alloc id>/             0755
//	     ├─ alloc/              0755  shared by the tasks
//	     │   ├─ data/           0777
//	     │   ├─ logs/           0777
//	     │   └─ tmp/            1777
//	     └─ <task>/             0777  owned by the task's user
//	         ├─ local/          0777
//	         ├─ secrets/        0700  a tmpfs of its own, 0777 where the user is unknown
//	         ├─ private/        0700  only where there is no private tmpfs
//	         └─ tmp/            1777
//	<private>/                  0700  one tmpfs for the whole agent (MountPrivate)
//	 └─ <alloc id>/<task>/      0700  the agent's own files of a task: no task reads them
//
// Modes do not depend on the umask and owners are numbers: nothing is looked up.
// Building is repeatable: what is there is checked and set right, what is missing
// made, a tmpfs that is gone (a reboot) mounted again and one that is there left
// alone. Tasks may write in parts of the tree, so every step works on open
// directories and follows no link that a task made.
//
// Destroy unmounts before it deletes and its deletion cannot enter a mount at
// all, so that a busy mount or one that somebody else made costs an error, never
// another's files.
//
// tmpfs, owners and mount detection need Linux and root (CAP_SYS_ADMIN,
// CAP_CHOWN). Where they cannot be had the directories lie on disk and Report
// says so.
package allocdir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/spec"
)

var (
	// ErrBusy says that a mount in the tree is in use; try again once the process
	// that uses it is gone.
	ErrBusy = errors.New("allocdir: busy")
	// ErrNotDir says that something else stands where a directory of the tree belongs.
	ErrNotDir = errors.New("allocdir: not a directory")
	// ErrSecret says that a path leads into a task's secrets or private directory.
	ErrSecret = errors.New("allocdir: secrets cannot be read from outside the task")
	// ErrNotFile says that a path is a FIFO, socket or device, which reading could
	// block on or change.
	ErrNotFile = errors.New("allocdir: not a regular file")
	// ErrOnDisk says that a directory which should be a tmpfs lies on disk: this
	// process may not mount, or the system has no tmpfs.
	ErrOnDisk = errors.New("allocdir: on disk, not on a tmpfs")
)

// The names of the fixed directories.
const (
	sharedName  = "alloc"
	dataName    = "data"
	logsName    = "logs"
	tmpName     = "tmp"
	localName   = "local"
	secretsName = "secrets"
	privateName = "private"
)

// DefaultSecretsMB is the size of a secrets tmpfs whose size nobody chose.
const DefaultSecretsMB = 1

// DefaultPrivateMB is the size of a private tmpfs whose size nobody chose.
const DefaultPrivateMB = 64

// Config names the places of one alloc. Root and AllocID are required.
type Config struct {
	Root    string       // holds one directory per alloc; made 0711 if it is missing
	AllocID string       // a path element (spec.CheckName)
	Private string       // the agent-wide private tmpfs; "" keeps private on disk, inside the task's directory
	Log     hclog.Logger // nil is silent
}

// Dir is the directory of one alloc. It holds no open file and no state; its
// methods may be called by many goroutines, but not Destroy beside a Build.
type Dir struct {
	cfg  Config
	path string
	log  hclog.Logger
}

// TaskDir are the absolute host paths of a task's directories.
type TaskDir struct {
	Dir     string // the task's own root
	Local   string // the task's files
	Secrets string // tokens and rendered secrets, for the task
	Private string // the agent's files of this task
	Tmp     string
	Shared  string // the alloc's alloc/
	Logs    string // the alloc's alloc/logs/
}

// TaskOptions is how a task's directory is made. The zero value suits a task that
// runs as this process does.
type TaskOptions struct {
	// UID and GID own the task's directories. 0 is the user of this process, root or
	// not; -1 is a user nobody can name on this host (one inside an image): the
	// directories are then writable by all.
	UID, GID  int
	SecretsMB int // MiB of the secrets tmpfs; 0 is DefaultSecretsMB
}

// Report says what was really had, which may be less than what was asked for.
type Report struct {
	Created      bool     // the task's directory was not there
	Mounted      bool     // the secrets tmpfs was mounted by this call
	SecretsTmpfs bool     // secrets never reach a disk
	PrivateTmpfs bool     // the same for private
	Weaker       []string // for people: what is weaker than asked for, and why
}

func (r *Report) weaker(format string, args ...any) {
	r.Weaker = append(r.Weaker, fmt.Sprintf(format, args...))
}

// New checks the configuration; it touches nothing.
func New(cfg Config) (*Dir, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	root, err := filepath.Abs(cfg.Root)
	if err != nil {
		return nil, fmt.Errorf("allocdir: path of %q: %w", cfg.Root, err)
	}
	cfg.Root = root
	if cfg.Private != "" {
		if cfg.Private, err = filepath.Abs(cfg.Private); err != nil {
			return nil, fmt.Errorf("allocdir: path of the private directory: %w", err)
		}
	}
	log := cfg.Log
	if log == nil {
		log = hclog.NewNullLogger()
	}
	return &Dir{cfg: cfg, path: filepath.Join(root, cfg.AllocID), log: log}, nil
}

func (c *Config) validate() error {
	var errs []error
	if c.Root == "" {
		errs = append(errs, errors.New("allocdir: Config.Root is empty: name the directory that holds the allocs"))
	}
	if err := spec.CheckName(c.AllocID); err != nil {
		errs = append(errs, fmt.Errorf("allocdir: Config.AllocID: %w", err))
	}
	return errors.Join(errs...)
}

// Path returns the alloc's directory.
func (d *Dir) Path() string { return d.path }

// Shared returns the directory that all tasks of the alloc share.
func (d *Dir) Shared() string { return filepath.Join(d.path, sharedName) }

// Logs returns where the output of tasks is collected.
func (d *Dir) Logs() string { return filepath.Join(d.path, sharedName, logsName) }

// Task returns the paths of a task's directories, whether or not they exist.
// The name must be one that BuildTask accepts.
func (d *Dir) Task(name string) TaskDir {
	dir := filepath.Join(d.path, name)
	t := TaskDir{
		Dir:     dir,
		Local:   filepath.Join(dir, localName),
		Secrets: filepath.Join(dir, secretsName),
		Private: filepath.Join(dir, privateName),
		Tmp:     filepath.Join(dir, tmpName),
		Shared:  d.Shared(),
		Logs:    d.Logs(),
	}
	if d.cfg.Private != "" {
		t.Private = filepath.Join(d.cfg.Private, d.cfg.AllocID, name)
	}
	return t
}

// Build makes or repairs the alloc's directory and the shared ones.
func (d *Dir) Build(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	return d.build()
}

// BuildTask makes or repairs the directories of a task, the alloc's too if they
// are missing, and mounts its secrets tmpfs unless it is there. An error leaves a
// tree that the next call goes on with.
func (d *Dir) BuildTask(ctx context.Context, name string, opts TaskOptions) (TaskDir, Report, error) {
	if err := spec.CheckName(name); err != nil {
		return TaskDir{}, Report{}, fmt.Errorf("allocdir: task name: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return TaskDir{}, Report{}, context.Cause(ctx)
	}
	if opts.UID == 0 {
		opts.UID, opts.GID = os.Geteuid(), cmp.Or(opts.GID, os.Getegid())
	}
	if opts.SecretsMB <= 0 {
		opts.SecretsMB = DefaultSecretsMB
	}
	rep, err := d.buildTask(ctx, name, opts)
	if err != nil {
		return TaskDir{}, rep, err
	}
	return d.Task(name), rep, nil
}

// DropSecrets unmounts the secrets of these tasks, and what is in them is gone: for
// an alloc whose tasks have all ended. The directories stay, empty. Secrets that
// lie on disk stay too, until Destroy. Idempotent; what is not there is no error.
// ErrBusy while a process uses one: the others are dropped, and that one with
// Destroy at the latest.
func (d *Dir) DropSecrets(tasks []string) error { return d.dropSecrets(tasks) }

// Destroy unmounts and removes all of the alloc, its private files first. A mount
// in use is ErrBusy with its path; all else is removed meanwhile. Repeat it until
// it returns nil: what is gone already is no error. It works from what is on disk
// alone, so an alloc that nobody remembers (List) can be destroyed too.
func (d *Dir) Destroy(ctx context.Context) error {
	if d.cfg.Private != "" {
		if err := d.remove(ctx, d.cfg.Private); err != nil {
			return err
		}
	}
	// Last: as long as it is there List finds the alloc.
	return d.remove(ctx, d.cfg.Root)
}

// List returns the ids of the allocs that have a directory under root, sorted. A
// root that does not exist has none.
func List(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("allocdir: list allocs: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && spec.CheckName(e.Name()) == nil {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}
