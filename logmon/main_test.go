// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// roles are what this binary does as a child process: tests that need another
// process start it with "role:<name>" as its first argument.
var roles = map[string]func(args []string){}

func TestMain(m *testing.M) {
	if name, ok := strings.CutPrefix(first(os.Args), "role:"); ok {
		roles[name](os.Args[2:])
		return
	}
	os.Exit(m.Run())
}

func first(args []string) string {
	if len(args) > 1 {
		return args[1]
	}
	return ""
}

// process is a child in a role, with its standard input and output.
type process struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func command(role string, args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", append([]string{"role:" + role}, args...)...)
	c.Env = append(os.Environ(), "GOMAXPROCS=1", "GORACE=atexit_sleep_ms=0")
	c.Stderr = os.Stderr
	return c
}

// start starts a child; it is killed and waited for at the test's end.
func start(t testing.TB, c *exec.Cmd) *process {
	t.Helper()
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return &process{c, in, bufio.NewReader(out)}
}

// expect waits for a line of the child.
func (p *process) expect(t testing.TB, want string) {
	t.Helper()
	got, err := p.out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, want+"\n", got)
}

// tell sends a line to the child.
func (p *process) tell(t testing.TB) {
	t.Helper()
	_, err := io.WriteString(p.in, "\n")
	require.NoError(t, err)
}

// told waits for a line of the parent; without one the parent has gone.
func told() {
	b := make([]byte, 1)
	if _, err := os.Stdin.Read(b); err != nil {
		os.Exit(0)
	}
}

func say(s string) { _, _ = os.Stdout.WriteString(s + "\n") }

func atoi(s string) int { n, err := strconv.Atoi(s); must(err); return n }

func must(err error) {
	if err != nil {
		panic(err)
	}
}
