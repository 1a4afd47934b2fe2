// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// benchPool is a pool on tmpfs; NK_SUPERVISOR names another program than the
// test's own, such as a built nodekeep-supervisor.
func benchPool(b *testing.B, wide bool) (*Pool, string) {
	dir, err := os.MkdirTemp("/dev/shm", "nk-bench-")
	if err != nil {
		b.Skip(err)
	}
	p, err := NewPool(PoolConfig{Dir: dir + "/run", Exe: os.Getenv("NK_SUPERVISOR"), Wide: wide})
	if err != nil {
		b.Fatal(err)
	}
	if err := os.Mkdir(dir+"/logs", 0o755); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if l, err := p.Names(); err != nil || len(l) > 0 {
			b.Errorf("left: %v %v", l, err)
		}
		_ = p.Close()
		reapSupervisors(0, false)
		_ = os.RemoveAll(dir)
	})
	return p, dir + "/logs"
}

// startOne is what an agent asks for one task: logs, start.
func startOne(ctx context.Context, s *Scope, id, logs, cgroup string) error {
	o, e, err := s.Logs(ctx, LogSpec{Task: id, Dir: logs})
	if err != nil {
		return err
	}
	_, err = s.Start(ctx, Spec{ID: id, Path: "/bin/sleep", Args: []string{"sleep", "600"}, Stdout: o, Stderr: e, Cgroup: cgroup})
	return err
}

func endOne(ctx context.Context, s *Scope, id string) error {
	if err := s.Destroy(ctx, id); err != nil {
		return err
	}
	return s.EndLogs(ctx, id)
}

// BenchmarkScopes starts and ends 100 scopes of one task each, all at once.
func BenchmarkScopes(b *testing.B) {
	const n = 100
	p, logs := benchPool(b, false)
	var start, pss time.Duration
	var cpu time.Duration
	for b.Loop() {
		names := make([]*Scope, n)
		t0, c0 := time.Now(), cpuNow(p.cfg.Dir)
		all(n, func(i int) {
			names[i] = p.Scope(fmt.Sprint("s", i))
			if err := startOne(b.Context(), names[i], fmt.Sprint("t", i), logs, ""); err != nil {
				b.Error(err)
			}
		})
		start += time.Since(t0)
		cpu += cpuNow(p.cfg.Dir) - c0
		for _, pid := range supervisors(p.cfg.Dir) {
			pss += time.Duration(rollupB(pid, "Pss"))
		}
		all(n, func(i int) {
			if err := endOne(b.Context(), names[i], fmt.Sprint("t", i)); err != nil {
				b.Error(err)
			}
			if err := names[i].Release(b.Context()); err != nil {
				b.Error(err)
			}
		})
	}
	b.ReportMetric(n*float64(b.N)/start.Seconds(), "starts/s")
	b.ReportMetric(cpu.Seconds()*1000/n/float64(b.N), "cpu-ms/start")
	b.ReportMetric(float64(pss)/n/float64(b.N), "kB-PSS/supervisor")
}

// BenchmarkTasks starts and ends 100 tasks in one wide scope, all at once.
func BenchmarkTasks(b *testing.B) {
	const n = 100
	p, logs := benchPool(b, true)
	s := p.Scope("node")
	_, pid, err := s.Hello(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	var start, cpu time.Duration
	pss := 0
	for b.Loop() {
		t0, c0 := time.Now(), cpuNow(p.cfg.Dir)
		all(n, func(i int) {
			if err := startOne(b.Context(), s, fmt.Sprint("t", i), logs, ""); err != nil {
				b.Error(err)
			}
		})
		start += time.Since(t0)
		cpu += cpuNow(p.cfg.Dir) - c0
		pss += rollupB(pid, "Pss")
		all(n, func(i int) {
			if err := endOne(b.Context(), s, fmt.Sprint("t", i)); err != nil {
				b.Error(err)
			}
		})
	}
	if err := s.Release(b.Context()); err != nil {
		b.Error(err)
	}
	b.ReportMetric(n*float64(b.N)/start.Seconds(), "starts/s")
	b.ReportMetric(cpu.Seconds()*1000/n/float64(b.N), "cpu-ms/start")
	b.ReportMetric(float64(pss)/float64(b.N), "kB-PSS")
}

// BenchmarkStart is one start at a time in a supervisor that runs; the rest of
// the task's life is not counted.
func BenchmarkStart(b *testing.B) {
	groups := map[string]string{"mark": "", "v2": "/sys/fs/cgroup/unified/nk-bench", "freezer": "/sys/fs/cgroup/freezer/nk-bench"}
	for mode, root := range groups {
		b.Run(mode, func(b *testing.B) {
			if root != "" && !exists(root[:len(root)-len("/nk-bench")]) {
				b.Skip("no such hierarchy")
			}
			p, logs := benchPool(b, false)
			s := p.Scope("s")
			o, e, err := s.Logs(b.Context(), LogSpec{Task: "t", Dir: logs})
			if err != nil {
				b.Fatal(err)
			}
			n := 0
			for b.Loop() {
				n++
				sp := Spec{ID: fmt.Sprint(n), Path: "/bin/true", Stdout: o, Stderr: e}
				if root != "" {
					sp.Cgroup = fmt.Sprint(root, "/", n)
				}
				if _, err := s.Start(b.Context(), sp); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if _, err := s.Wait(b.Context(), sp.ID); err != nil {
					b.Fatal(err)
				}
				if err := s.Destroy(b.Context(), sp.ID); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			if root != "" {
				_ = syscall.Rmdir(root)
			}
			if err := s.Release(b.Context()); err != nil {
				b.Error(err)
			}
		})
	}
}

// BenchmarkLife is a whole task of /bin/true, and its limit beside it.
func BenchmarkLife(b *testing.B) {
	p, logs := benchPool(b, false)
	s := p.Scope("s")
	o, e, err := s.Logs(b.Context(), LogSpec{Task: "t", Dir: logs})
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		n++
		sp := Spec{ID: fmt.Sprint(n), Path: "/bin/true", Stdout: o, Stderr: e}
		if _, err := s.Start(b.Context(), sp); err != nil {
			b.Fatal(err)
		}
		if _, err := s.Wait(b.Context(), sp.ID); err != nil {
			b.Fatal(err)
		}
		if err := s.Destroy(b.Context(), sp.ID); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	if err := s.Release(b.Context()); err != nil {
		b.Error(err)
	}
}

// BenchmarkReexec is the limit of BenchmarkScopes: the supervisor's program
// started and ended at once, by two workers.
func BenchmarkReexec(b *testing.B) {
	exe := os.Getenv("NK_SUPERVISOR")
	if exe == "" {
		exe = "/proc/self/exe"
	}
	b.SetParallelism(1)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			c := exec.Command(exe)
			c.Args = []string{argv0, "/nowhere"} // no listener: it ends with an error
			c.Env = []string{cookieKey + "=" + cookie}
			_ = c.Run()
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "starts/s")
}

// BenchmarkTrue is the limit of BenchmarkLife: fork, exec and wait.
func BenchmarkTrue(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHello is one round trip.
func BenchmarkHello(b *testing.B) {
	p, _ := benchPool(b, false)
	s := p.Scope("s")
	for b.Loop() {
		if _, _, err := s.Hello(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	if err := s.Release(b.Context()); err != nil {
		b.Error(err)
	}
}

func all(n int, fn func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { fn(i) })
	}
	wg.Wait()
}

// cpuNow is what this process, the supervisors below dir and their tasks have
// spent, as far as they live.
func cpuNow(dir string) (sum time.Duration) {
	pids := append(supervisors(dir), os.Getpid())
	for _, pid := range pids {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		for _, th := range threads {
			sum += onCPU(th)
			b, _ := os.ReadFile(th + "/children")
			if pid == os.Getpid() {
				continue
			}
			for p := range strings.FieldsSeq(string(b)) {
				sum += onCPU("/proc/" + p)
			}
		}
	}
	return sum
}

func onCPU(dir string) time.Duration {
	b, _ := os.ReadFile(dir + "/schedstat")
	v, _, _ := strings.Cut(string(b), " ")
	n, _ := strconv.Atoi(v)
	return time.Duration(n)
}

func rollupB(pid int, key string) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	return field(string(b), key)
}
