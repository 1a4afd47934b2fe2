// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

// Command bench measures the whole product: an agent in a process of its own,
// bbolt on disk with fsync, logs on, real tasks. It prints one JSON object per
// figure and then a table. A figure with a physical limit is measured beside
// that limit in the same run, because machines drift.
//
//	bench                                  all modes but those of exec, 100 allocs
//	go run -tags isolated ./bench -modes exec,exec-small
//	                                       isolated tasks: by this program, or by the small ones
//	bench -modes alloc,node -n 1000 -rounds 3
//
// The built-in hooks are on (validate, dirs, logs); nothing else is.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type options struct {
	role, data, runtime, scope, exe string
	driver, creator                 string
	size                            int
	total                           int64
	modes                           string
	n, rounds                       int
	idle                            time.Duration
}

func main() {
	var opt options
	flag.StringVar(&opt.role, "role", "", "internal: node or writer")
	flag.StringVar(&opt.data, "data", "", "directory for state (default: a new one; a disk, not tmpfs)")
	flag.StringVar(&opt.runtime, "runtime", "", "directory for sockets and FIFOs (default: a new one on tmpfs)")
	flag.StringVar(&opt.scope, "scope", "alloc", "internal: supervisors per alloc, task or node")
	flag.StringVar(&opt.exe, "supervisor", "", "the small supervisor binary, for mode small (default: built for the run)")
	flag.StringVar(&opt.modes, "modes", "alloc,small,node", "modes: alloc (default scope), small (with the small supervisor), node (dense); exec and exec-small need -tags isolated")
	flag.StringVar(&opt.driver, "driver", "raw_exec", "internal")
	flag.StringVar(&opt.creator, "creator", "", "internal")
	flag.IntVar(&opt.n, "n", 100, "allocs at once")
	flag.IntVar(&opt.rounds, "rounds", 5, "rounds; the median counts")
	flag.DurationVar(&opt.idle, "idle", 20*time.Second, "how long idleness is watched")
	flag.IntVar(&opt.size, "size", 4096, "internal")
	flag.Int64Var(&opt.total, "total", 0, "internal")
	flag.Parse()
	var err error
	switch opt.role {
	case "node":
		err = runNode(opt)
	case "writer":
		err = writer(opt.size, opt.total)
	case "":
		err = suite(opt)
	default:
		err = fmt.Errorf("bench: unknown role %q", opt.role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// figure is one line of the result.
type figure struct {
	Name    string    `json:"name"`
	Value   float64   `json:"value"`
	Unit    string    `json:"unit"`
	Limit   float64   `json:"limit,omitempty"` // measured in the same run
	N       int       `json:"n"`
	Samples []float64 `json:"samples,omitempty"`
}

type bench struct {
	opt     options
	cpu     *cpu
	figures []figure
}

func suite(opt options) error {
	b := &bench{opt: opt, cpu: newCPU()}
	defer b.cpu.close()
	fmt.Fprintf(os.Stderr, "bench: %d cores, kernel %s, cpu counted by %s\n", runtime.NumCPU(), kernel(),
		map[bool]string{true: "cpuacct", false: "/proc/stat (the whole machine)"}[b.cpu.exact()])
	clean, err := b.buildSupervisor()
	if err != nil {
		return err
	}
	defer clean()
	for mode := range strings.SplitSeq(opt.modes, ",") {
		if err := b.mode(mode); err != nil {
			return fmt.Errorf("mode %s: %w", mode, err)
		}
	}
	return table(os.Stdout, b.figures)
}

// buildSupervisor makes the small supervisor if a mode needs it and none is named.
func (b *bench) buildSupervisor() (clean func(), err error) {
	if b.opt.exe != "" {
		b.opt.exe, err = filepath.Abs(b.opt.exe)
		return func() {}, err
	}
	modes := strings.Split(b.opt.modes, ",")
	small := slices.Contains(modes, "exec-small")
	if !slices.Contains(modes, "small") && !small {
		return func() {}, nil
	}
	dir, err := os.MkdirTemp("", "nodekeep-bench-")
	if err != nil {
		return nil, err
	}
	b.opt.exe = filepath.Join(dir, "nodekeep-supervisor")
	out, err := exec.Command("go", "build", "-o", b.opt.exe, "github.com/nodekeep/nodekeep/cmd/nodekeep-supervisor").CombinedOutput()
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("bench: build the small supervisor: %w\n%s", err, out)
	}
	if small {
		b.opt.creator = filepath.Join(dir, "creator") // by another name, so that it is not found but named
		out, err := exec.Command("go", "build", "-tags", "netgo,osusergo", "-ldflags", "-s -w -linkmode external -extldflags -static",
			"-o", b.opt.creator, "github.com/nodekeep/nodekeep/cmd/nodekeep-exec").CombinedOutput()
		if err != nil {
			_ = os.RemoveAll(dir)
			return nil, fmt.Errorf("bench: build the small creator: %w\n%s", err, out)
		}
	}
	return func() { _ = os.RemoveAll(dir) }, nil
}

func kernel() string {
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(b))
}

func (b *bench) add(name, unit string, n int, limit float64, samples ...float64) {
	f := figure{Name: name, Value: median(samples), Unit: unit, Limit: limit, N: n, Samples: samples}
	b.figures = append(b.figures, f)
	line, _ := json.Marshal(f)
	fmt.Println(string(line))
}

// agent is a running node.
type agent struct {
	cmd   *exec.Cmd
	stdin io.Closer
	in    *bufio.Writer
	out   lines
}

// start runs a node and waits until it is ready; it returns how many allocs run.
func (b *bench) start(scope, exe, data, run string) (*agent, int, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, 0, err
	}
	args := []string{"-role", "node", "-scope", scope, "-data", data, "-runtime", run, "-supervisor", exe, "-driver", b.opt.driver}
	if exe != "" {
		args = append(args, "-creator", b.opt.creator)
	}
	a := &agent{cmd: exec.Command(self, args...)}
	a.cmd.Stderr = os.Stderr
	in, err := a.cmd.StdinPipe()
	if err != nil {
		return nil, 0, err
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		return nil, 0, err
	}
	a.stdin = in
	a.in, a.out = bufio.NewWriter(in), lines{bufio.NewScanner(out)}
	a.out.s.Buffer(nil, 1<<20)
	if err := a.cmd.Start(); err != nil {
		return nil, 0, err
	}
	line, err := a.out.next()
	if err != nil {
		return nil, 0, err
	}
	n, err := strconv.Atoi(strings.TrimPrefix(line, "ready "))
	return a, n, err
}

func (a *agent) ask(cmd string) (string, error) {
	fmt.Fprintln(a.in, cmd)
	if err := a.in.Flush(); err != nil {
		return "", err
	}
	return a.out.next()
}

func (a *agent) number(cmd string) (float64, error) {
	s, err := a.ask(cmd)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(s, 64)
}

// close lets the agent go in order; kill does not.
func (a *agent) close() {
	_ = a.stdin.Close()
	_ = a.cmd.Wait()
}

func (a *agent) kill() {
	_ = a.cmd.Process.Signal(syscall.SIGKILL)
	_ = a.cmd.Wait()
}

// dirs makes a fresh place for state on disk and one for sockets on tmpfs.
func (b *bench) dirs() (data, run string, clean func(), err error) {
	if data, err = os.MkdirTemp(b.opt.data, "nodekeep-bench-"); err != nil {
		return "", "", nil, err
	}
	base := b.opt.runtime
	if base == "" {
		base = tmpfs()
	}
	if run, err = os.MkdirTemp(base, "nodekeep-bench-"); err != nil {
		return "", "", nil, err
	}
	return filepath.Join(data, "d"), run, func() {
		for _, pid := range supervisors(run) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		unmount(data)
		_ = os.RemoveAll(data)
		_ = os.RemoveAll(run)
	}, nil
}

// tmpfs returns the first usual place that is one.
func tmpfs() string {
	for _, dir := range []string{"/run", "/dev/shm"} {
		var st syscall.Statfs_t
		if syscall.Statfs(dir, &st) == nil && st.Type == 0x01021994 {
			return dir
		}
	}
	fmt.Fprintln(os.Stderr, "bench: no tmpfs found: figures will be those of a disk")
	return os.TempDir()
}
