// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// pumping starts a pump from a new FIFO to dir; stop ends it and waits.
func pumping(t testing.TB, fifo string, cfg RotateConfig) (p *Pump, stop func()) {
	t.Helper()
	r, err := OpenReader(fifo)
	require.NoError(t, err)
	if cfg.Base == "" {
		cfg.Base = base
	}
	p = NewPump(r, NewRotator(cfg), func(s string) { t.Error(s) })
	done := make(chan struct{})
	go func() { p.Run(); close(done) }()
	stop = sync.OnceFunc(func() { p.Close(); <-done })
	t.Cleanup(stop)
	return p, stop
}

func fifoIn(t testing.TB, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "fifo")
	require.NoError(t, Create(path, Owner{}))
	return path
}

// writer opens a FIFO as a task has it.
func writer(t testing.TB, fifo string) io.WriteCloser {
	t.Helper()
	w, err := OpenWriter(fifo)
	require.NoError(t, err)
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func send(t testing.TB, w io.Writer, s string) {
	t.Helper()
	_, err := io.WriteString(w, s)
	require.NoError(t, err)
}

// FF-079: what a process wrote before its end is on file when Drain says so,
// though a child of it keeps the FIFO open and writes on.
func TestDrainAtExit(t *testing.T) {
	dir := t.TempDir()
	fifo := fifoIn(t, dir)
	p, stop := pumping(t, fifo, RotateConfig{Dir: dir})
	out, err := os.OpenFile(fifo, os.O_RDWR, 0) // as the supervisor opens it for a child
	require.NoError(t, err)
	defer out.Close()
	var want strings.Builder
	rounds := 100
	for i := range rounds {
		text := "x" // no newline
		if i%10 == 9 {
			text = strings.Repeat(fmt.Sprintf("%08d\n", i), 300<<10/9)
		}
		c := exec.Command("/bin/sh", "-c", `printf %s "$1"`, "sh", text)
		if len(text) > 1 {
			c = exec.Command("/bin/cat")
			c.Stdin = strings.NewReader(text)
		}
		c.Stdout = out
		require.NoError(t, c.Run())
		drain(p)
		want.WriteString(text)
		if i%10 == 9 || i == rounds-1 {
			require.Equal(t, want.String(), log(t, dir))
		}
	}
	// A child that goes on holds nothing up and is heard.
	more := exec.Command("/bin/sh", "-c", "read x; echo later")
	in, err := more.StdinPipe()
	require.NoError(t, err)
	more.Stdout = out
	require.NoError(t, more.Start())
	drain(p)
	send(t, in, "\n")
	require.NoError(t, more.Wait())
	stop() // takes what is in the FIFO
	require.Equal(t, want.String()+"later\n", log(t, dir))
}

// Drain means what was there at its call, be the FIFO larger than usual and the
// writer never silent.
func TestDrainIsExact(t *testing.T) {
	dir := t.TempDir()
	fifo := fifoIn(t, dir)
	w := writer(t, fifo)
	const fSetPipeSize = 1031
	var err error
	require.NoError(t, control(w, func(fd uintptr) {
		_, _, e := syscall.Syscall(syscall.SYS_FCNTL, fd, fSetPipeSize, 1<<20)
		if e != 0 {
			err = e
		}
	}))
	require.NoError(t, err)
	text := strings.Repeat("0123456789abcde\n", 1<<15) // 512 KiB wait in the FIFO
	send(t, w, text)
	p, _ := pumping(t, fifo, RotateConfig{Dir: dir})
	drain(p)
	require.Equal(t, text, log(t, dir))

	quit := make(chan struct{})
	silent := make(chan struct{})
	go func() {
		defer close(silent)
		for {
			select {
			case <-quit:
				return
			default:
				_, _ = io.WriteString(w, "noise\n")
			}
		}
	}()
	for range 50 {
		drain(p)
	}
	close(quit)
	<-silent
	drain(p)
}

func control(w io.Writer, f func(fd uintptr)) error {
	rc, err := w.(*os.File).SyscallConn()
	if err != nil {
		return err
	}
	return rc.Control(f)
}

// The pair outlives its writers: a FIFO at its end is no end of the pump, and
// needs no attention.
func TestWritersComeAndGo(t *testing.T) {
	dir := t.TempDir()
	fifo := fifoIn(t, dir)
	p, stop := pumping(t, fifo, RotateConfig{Dir: dir})
	var want strings.Builder
	for i := range 100 {
		// Write-only, as external drivers open it: the pump sees the end each time.
		w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
		require.NoError(t, err)
		l := fmt.Sprintf("attempt %d\n", i)
		want.WriteString(l)
		send(t, w, l)
		require.NoError(t, w.Close())
	}
	drain(p)
	require.Equal(t, want.String(), log(t, dir))
	stop()
	p.Close()
	drain(p) // also after the end
	p.Run()  // only once
}

// FF-078: a pump nobody ever wrote to ends at once, and so does one that never ran.
func TestNeverWritten(t *testing.T) {
	dir := t.TempDir()
	fifo := fifoIn(t, dir)
	_, stop := pumping(t, fifo, RotateConfig{Dir: dir})
	stop()
	r, err := OpenReader(fifo)
	require.NoError(t, err)
	p := NewPump(r, NewRotator(RotateConfig{Dir: dir, Base: base}), nil)
	p.Close()
	drain(p)
	p.Run()
	_, err = r.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrClosed)
	indices, _ := files(t, dir)
	require.Empty(t, indices)
}

// FF-043: a hundred pairs later there is not a descriptor, thread or goroutine more.
func TestNothingLeaks(t *testing.T) {
	dir := t.TempDir()
	round := func() {
		sub, err := os.MkdirTemp(dir, "")
		require.NoError(t, err)
		fifo := fifoIn(t, sub)
		p, stop := pumping(t, fifo, RotateConfig{Dir: sub})
		w := writer(t, fifo)
		send(t, w, "x\n")
		drain(p)
		stop()
		require.NoError(t, w.Close())
	}
	round()
	fds, threads, gs := count(t, "fd"), count(t, "task"), runtime.NumGoroutine()
	for range 100 {
		round()
	}
	require.LessOrEqual(t, count(t, "fd"), fds)
	require.LessOrEqual(t, count(t, "task"), threads+2)
	require.LessOrEqual(t, runtime.NumGoroutine(), gs+2) // one more or less of the runtime's own
}

func count(t *testing.T, what string) int {
	des, err := os.ReadDir("/proc/self/" + what)
	require.NoError(t, err)
	return len(des)
}

// Two streams of one process, taken at the same time, are exact.
func TestBothStreams(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	var outs []*os.File
	var pumps []*Pump
	for _, d := range dirs {
		fifo := fifoIn(t, d)
		p, _ := pumping(t, fifo, RotateConfig{Dir: d})
		out, err := os.OpenFile(fifo, os.O_RDWR, 0)
		require.NoError(t, err)
		defer out.Close()
		outs, pumps = append(outs, out), append(pumps, p)
	}
	for range 100 {
		c := exec.Command("/bin/sh", "-c", `for i in 1 2 3 4 5 6 7 8 9; do echo out $i; echo err $i >&2; done; printf end; printf end >&2`)
		c.Stdout, c.Stderr = outs[0], outs[1]
		require.NoError(t, c.Run())
		for _, p := range pumps {
			drain(p)
		}
	}
	for i, name := range []string{"out", "err"} {
		one := ""
		for k := 1; k <= 9; k++ {
			one += fmt.Sprintf("%s %d\n", name, k)
		}
		require.Equal(t, strings.Repeat(one+"end", 100), log(t, dirs[i]))
	}
}

// A reader that is no descriptor: drained is what is at its end.
func TestPlainReader(t *testing.T) {
	dir := t.TempDir()
	r, w := io.Pipe()
	p := NewPump(r, NewRotator(RotateConfig{Dir: dir, Base: base}), nil)
	drained := make(chan struct{})
	p.Drain(func() { close(drained) })
	done := make(chan struct{})
	go func() { p.Run(); close(done) }()
	send(t, w, "text")
	require.NoError(t, w.Close())
	<-drained
	<-done
	require.Equal(t, "text", log(t, dir))

	r, _ = io.Pipe()
	p = NewPump(r, NewRotator(RotateConfig{Dir: dir, Base: base}), func(s string) { t.Error(s) })
	done = make(chan struct{})
	go func() { p.Run(); close(done) }()
	p.Close()
	<-done
}

// Close may come before Run has begun: what is in the FIFO is on file all the
// same when Run returns.
func TestCloseBeforeRun(t *testing.T) {
	for range 100 {
		dir := t.TempDir()
		fifo := fifoIn(t, dir)
		send(t, writer(t, fifo), "text")
		r, err := OpenReader(fifo)
		require.NoError(t, err)
		p := NewPump(r, NewRotator(RotateConfig{Dir: dir, Base: base}), func(s string) { t.Error(s) })
		done := make(chan struct{})
		go func() { p.Run(); close(done) }()
		p.Close()
		<-done
		require.Equal(t, "text", log(t, dir))
	}
}

func init() { roles["count"] = roleCount }

// roleCount writes numbered lines to the FIFO, as a task's output, until told.
func roleCount(args []string) {
	fd, err := syscall.Open(args[0], syscall.O_RDWR, 0)
	must(err)
	quit := make(chan struct{})
	go func() { told(); close(quit) }()
	for i := 0; ; i++ {
		select {
		case <-quit:
			say(fmt.Sprint(i))
			told()
			return
		default:
		}
		_, err := syscall.Write(fd, fmt.Appendf(nil, "line %d\n", i))
		must(err)
	}
}

// FF-076, FF-083: a collector that is killed at any moment, rotating or not, is
// replaced by one that opens the same FIFO. The task, which is its own reader,
// lives on; no line is lost, doubled or broken.
func TestKilledCollector(t *testing.T) {
	dir := t.TempDir()
	fifo := fifoIn(t, dir)
	w := start(t, command("count", fifo))
	cfg := RotateConfig{Dir: dir, Base: base, MaxSize: 16 << 10, MaxFiles: 1 << 20}
	for i := range 12 {
		c := start(t, command("pump", fifo, dir, base, fmt.Sprint(cfg.MaxSize), fmt.Sprint(cfg.MaxFiles)))
		c.expect(t, "ready")
		sizeGrows(t, dir, int64(i)*1000)
		require.NoError(t, c.Process.Kill())
		_, _ = c.Process.Wait()
	}
	p, _ := pumping(t, fifo, cfg)
	w.tell(t)
	total, err := w.out.ReadString('\n')
	require.NoError(t, err)
	drain(p)
	i := 0
	for l := range strings.Lines(log(t, dir)) {
		if l != fmt.Sprintf("line %d\n", i) {
			t.Fatalf("line %d is %q", i, l)
		}
		i++
	}
	require.Equal(t, total, fmt.Sprintln(i))
	_, contents := files(t, dir)
	for _, c := range contents {
		require.True(t, c == "" || strings.HasSuffix(c, "\n"))
	}
}

// sizeGrows waits until more than so many bytes have been added to the log.
func sizeGrows(t *testing.T, dir string, more int64) {
	size := func() (n int64) {
		des, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, de := range des {
			if st, err := de.Info(); err == nil && st.Mode().IsRegular() {
				n += st.Size()
			}
		}
		return n
	}
	for from := size(); size() <= from+more; {
		runtime.Gosched()
	}
}
