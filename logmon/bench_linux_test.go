// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func init() {
	roles["write"] = roleWrite
	roles["pump"] = rolePump
	roles["bare"] = roleBare
}

// roleWrite writes total bytes in pieces of size to the FIFO, opened as a
// task's standard output is.
func roleWrite(args []string) {
	total, size := atoi(args[1]), atoi(args[2])
	fd, err := syscall.Open(args[0], syscall.O_RDWR, 0)
	must(err)
	b := make([]byte, size)
	for i := range b {
		b[i] = 'x'
	}
	b[size-1] = '\n'
	say("ready")
	told()
	for n := 0; n < total; {
		m, err := syscall.Write(fd, b)
		must(err)
		n += m
	}
	say("written")
	told()
}

// rolePump is what the supervisor does.
func rolePump(args []string) {
	r, err := OpenReader(args[0])
	must(err)
	cfg := RotateConfig{Dir: args[1], Base: args[2]}
	if len(args) > 3 {
		cfg.MaxSize, cfg.MaxFiles = int64(atoi(args[3])), atoi(args[4])
	}
	p := NewPump(r, NewRotator(cfg), func(s string) { panic(s) })
	done := make(chan struct{})
	go func() { p.Run(); close(done) }()
	say("ready")
	told()
	p.Drain(func() { say("done") })
	told()
	p.Close()
	<-done
}

// roleBare is the least a program can do.
func roleBare(args []string) {
	fd, err := syscall.Open(args[0], syscall.O_RDWR, 0)
	must(err)
	out, err := os.Create(filepath.Join(args[1], "x.0"))
	must(err)
	say("ready")
	b := make([]byte, 64<<10)
	for n, total := 0, atoi(args[2]); n < total; {
		m, err := syscall.Read(fd, b)
		must(err)
		_, err = syscall.Write(int(out.Fd()), b[:m])
		must(err)
		n += m
	}
	told()
	say("done")
}

// rate returns how many MB/s a collector of that role moves.
func rate(b *testing.B, role string, total, size int) float64 {
	dir, err := os.MkdirTemp(b.TempDir(), role)
	require.NoError(b, err)
	fifo := filepath.Join(dir, "fifo")
	require.NoError(b, Create(fifo, Owner{}))
	c := start(b, command(role, fifo, dir, strconv.Itoa(total)))
	c.expect(b, "ready")
	w := start(b, command("write", fifo, strconv.Itoa(total), strconv.Itoa(size)))
	w.expect(b, "ready")
	begin := time.Now()
	w.tell(b)
	w.expect(b, "written")
	c.tell(b)
	c.expect(b, "done")
	took := time.Since(begin)
	_ = w.in.Close()
	_ = c.in.Close()
	_, _ = w.Process.Wait()
	_, _ = c.Process.Wait()
	require.NoError(b, os.RemoveAll(dir))
	return float64(total) / 1e6 / took.Seconds()
}

// BenchmarkThroughput compares the pump with a bare copy of the same bytes in
// the same minute: a writer, and a collector with one P, each a process of its
// own. "ratio" is the median over all rounds.
func BenchmarkThroughput(b *testing.B) {
	for _, bb := range []struct{ size, total int }{{4096, 1 << 30}, {128, 128 << 20}} {
		b.Run(strconv.Itoa(bb.size), func(b *testing.B) {
			var bare, pump, ratio []float64
			for b.Loop() {
				x, y := rate(b, "bare", bb.total, bb.size), rate(b, "pump", bb.total, bb.size)
				bare, pump, ratio = append(bare, x), append(pump, y), append(ratio, y/x)
			}
			b.ReportMetric(median(bare), "bareMB/s")
			b.ReportMetric(median(pump), "MB/s")
			b.ReportMetric(median(ratio), "ratio")
		})
	}
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
