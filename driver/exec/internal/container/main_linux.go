// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/nodekeep/nodekeep/driver/exec/internal/container/seccomp"
	"github.com/nodekeep/nodekeep/driver/exec/internal/container/shim"
	"github.com/nodekeep/nodekeep/internal/creator"
)

// specFile is what Exec has to know of a task, in its state directory.
const specFile = "spec.json"

// Main is a creator, or the init it starts; see package internal/creator for what
// it is given. To be called, before anything else is done, by a program whose
// command line is Asked for there. It never returns.
func Main() {
	if os.Args[1] == creator.Init {
		if os.Getenv("_LIBCONTAINER_INITPIPE") != "" {
			libcontainer.Init()
		}
		os.Exit(255)
	}
	// None of what we were given is passed on but what is named.
	_ = unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	logrus.SetOutput(io.Discard) // 2 is the task's
	socket := os.NewFile(creator.SocketFD, "socket")
	pid, err := makeProcess(socket)
	if err == nil {
		err = creator.Done(socket, pid)
	}
	if err != nil {
		_ = creator.Fail(socket, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func makeProcess(socket io.Reader) (pid int, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("container: %v\n%s", p, debug.Stack())
		}
	}()
	raw, err := creator.ReadSpec(socket)
	if err != nil {
		return 0, fmt.Errorf("container: what to make was not told: %w", err)
	}
	if !hasNsenter {
		return 0, fmt.Errorf("%w: %s", ErrUnsupported, withoutCgo)
	}
	if os.Args[1] == creator.Exec {
		return execute(raw)
	}
	return create(raw)
}

// create makes a container whose process waits for exec.fifo. What fails leaves
// nothing.
func create(raw []byte) (int, error) {
	var s Spec
	if err := decode(raw, &s); err != nil {
		return 0, err
	}
	if s.Version != SpecVersion {
		return 0, fmt.Errorf("container: a spec of version %d, this program makes %d: the supervisor is older than the agent; start the task in a new alloc", s.Version, SpecVersion)
	}
	if err := s.check(); err != nil {
		return 0, err
	}
	if !s.Rootless {
		if err := ownMounts(); err != nil {
			return 0, err
		}
	}
	unix.Umask(0)
	l, err := layOut(s)
	if err != nil {
		return 0, fmt.Errorf("container: root: %w", err)
	}
	if err := preMount(s, l); err != nil {
		return 0, err
	}
	conf, err := config(s, l)
	if err != nil {
		return 0, fmt.Errorf("container: %w", err)
	}
	c, err := libcontainer.Create(s.StateRoot, s.ID, conf)
	if err != nil {
		return 0, fmt.Errorf("container: create: %w", err)
	}
	dir := filepath.Join(s.StateRoot, s.ID)
	if err := os.WriteFile(filepath.Join(dir, specFile), raw, 0o600); err != nil {
		return 0, errors.Join(err, c.Destroy())
	}
	p, err := process(s.Process, statusPipe())
	if err != nil {
		return 0, errors.Join(err, c.Destroy())
	}
	p.Init = true
	if err := c.Start(p); err != nil {
		err = fmt.Errorf("container: start: %w", err)
		if derr := c.Destroy(); derr != nil {
			_ = os.RemoveAll(dir)
		}
		return 0, err
	}
	return p.Pid()
}

// check refuses what Build would not have made.
func (s Spec) check() error {
	switch {
	case !filepath.IsAbs(s.StateRoot) || !filepath.IsAbs(s.Root.Dir) || s.ID == "" || strings.ContainsAny(s.ID, "/\x00") || s.ID[0] == '.':
		return errors.New("container: the spec names no place for its state")
	case len(s.Process.Args) == 0 || len(s.Process.Paths) == 0:
		return errors.New("container: the spec names no program")
	case s.Process.Seccomp && (!seccomp.Supported || !s.Process.NoNewPrivs):
		return errors.New("container: the spec wants a filter that cannot be loaded")
	case s.Cgroup != "" && (!filepath.IsAbs(s.Cgroup) || s.Cgroup == "/"), s.Cgroup == "" && !s.Rootless:
		return errors.New("container: the spec names no cgroup")
	}
	paths := []string{}
	for _, m := range s.Mounts {
		paths = append(paths, m.Target)
	}
	for _, e := range s.Root.Entries {
		paths = append(paths, e.Target)
	}
	for _, f := range s.Root.Files {
		paths = append(paths, f.Path)
	}
	for _, p := range append(paths, s.Root.Dirs...) {
		if len(p) < 2 || p[0] != '/' || !filepath.IsLocal(p[1:]) {
			return fmt.Errorf("container: the spec names a place %q", p)
		}
	}
	return nil
}

// ownMounts makes sure that what is mounted here is seen nowhere else.
func ownMounts() error {
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	if theirs, _ := os.Readlink("/proc/" + strconv.Itoa(os.Getppid()) + "/ns/mnt"); ours == theirs {
		return errors.New("container: the creator was started without a mount namespace of its own")
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return &os.PathError{Op: "mount", Path: "/", Err: err}
	}
	return nil
}

// preMount mounts what the container's user namespace may not.
func preMount(s Spec, l layout) error {
	if len(s.IDs) == 0 || s.Net != "" || s.Rootless {
		return nil
	}
	if err := unix.Mount("sysfs", l.rootfs+"/sys", "sysfs", safe|unix.MS_RDONLY, ""); err != nil {
		return &os.PathError{Op: "mount sysfs on", Path: l.rootfs + "/sys", Err: err}
	}
	return nil
}

// statusPipe is the pipe for what a program cannot be run for; nil if none was given.
func statusPipe() *os.File {
	var st unix.Stat_t
	if unix.Fstat(creator.ExecFD, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil
	}
	return os.NewFile(creator.ExecFD, "status")
}

// process is the shim, which runs the program.
func process(p Process, status *os.File) (*libcontainer.Process, error) {
	prog := shim.Program{Paths: len(p.Paths), Init: p.Init, Self: 3, ErrorsTo: -1}
	if p.Seccomp {
		prog.Filter = seccomp.Filter(p.Effective)
	}
	files := []*os.File{nil}
	if status != nil {
		files, prog.ErrorsTo = append(files, status), 4
	}
	var err error
	if files[0], err = prog.Open(); err != nil {
		return nil, err
	}
	out := &libcontainer.Process{
		Args: slices.Concat([]string{"/proc/self/fd/3"}, p.Paths, p.Args),
		Env:  p.Env, UID: p.UID, GID: p.GID, AdditionalGroups: p.Groups, Cwd: p.Dir,
		Capabilities:    &configs.Capabilities{Bounding: p.Bounding, Effective: p.Effective, Permitted: p.Effective, Inheritable: p.Ambient, Ambient: p.Ambient},
		NoNewPrivileges: &p.NoNewPrivs, ExtraFiles: files,
	}
	if p.TTY {
		out.ConsoleSocket = os.Stdin
		out.ConsoleHeight, out.ConsoleWidth = p.Rows, p.Cols
		return out, nil
	}
	out.Stdin, out.Stdout, out.Stderr = os.Stdin, os.Stdout, os.Stderr
	return out, nil
}

// execute runs a command beside a task. It returns once the command runs.
func execute(raw []byte) (int, error) {
	var x Exec
	if err := decode(raw, &x); err != nil {
		return 0, err
	}
	if err := x.check(); err != nil {
		return 0, err
	}
	b, err := os.ReadFile(filepath.Join(x.StateRoot, x.ID, specFile))
	if err != nil {
		return 0, fmt.Errorf("container: the task's state: %w", err)
	}
	var s Spec
	if err := json.Unmarshal(b, &s); err != nil {
		return 0, fmt.Errorf("container: the task's state: %w", err)
	}
	c, err := libcontainer.Load(x.StateRoot, x.ID)
	if err != nil {
		return 0, fmt.Errorf("container: load: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	p, err := process(x.beside(s.Process), w)
	if err != nil {
		return 0, err
	}
	if err := c.Run(p); err != nil {
		return 0, fmt.Errorf("container: run: %w", err)
	}
	_ = w.Close()
	if errno := creator.ReadExec(r); errno != 0 {
		_, _ = p.Wait()
		return 0, ExecError(x.Args[0], errno)
	}
	return p.Pid()
}

// check refuses what names no task or no program.
func (x Exec) check() error {
	switch {
	case x.Version != SpecVersion:
		return fmt.Errorf("container: a command of version %d, this program runs %d: start the task in a new alloc", x.Version, SpecVersion)
	case len(x.Args) == 0 || x.Args[0] == "":
		return errors.New("container: no command was named")
	case !filepath.IsAbs(x.StateRoot) || x.ID == "" || x.ID[0] == '.' || strings.ContainsAny(x.ID, "/\x00"):
		return errors.New("container: the command names no task")
	}
	return nil
}

// beside is the process of a task with another command.
func (x Exec) beside(p Process) Process {
	p.Env = merge(p.Env, x.Env)
	p.Args, p.Init = x.Args, false
	p.TTY, p.Rows, p.Cols = x.TTY, x.Rows, x.Cols
	p.Paths = []string{x.Args[0]}
	if !strings.Contains(x.Args[0], "/") {
		p.Paths = inPath(x.Args[0], p.Env)
	}
	return p
}

// merge adds variables to others, over which they win.
func merge(env, more []string) []string {
	out := slices.Clone(env)
	for _, kv := range more {
		name, _, _ := strings.Cut(kv, "=")
		out = slices.DeleteFunc(out, func(o string) bool { return strings.HasPrefix(o, name+"=") })
		out = append(out, kv)
	}
	return out
}

// ExecError is why the program of a container, or a command in one, could not be
// run, from what creator.ReadExec returned.
func ExecError(command string, errno syscall.Errno) error {
	if errno&shim.NoFilter != 0 {
		return fmt.Errorf("container: the seccomp filter was not taken: %w", errno&^shim.NoFilter)
	}
	err := fmt.Errorf("container: %q cannot be run: %w", command, errno)
	switch errno {
	case syscall.ENOENT:
		return fmt.Errorf("%w: there is no such program in the container, or what its first line or its header names to run it is not there", err)
	case syscall.ENOEXEC:
		return fmt.Errorf("%w: it is no program for this machine; a script must name its interpreter after #! in its first line", err)
	}
	return err
}
