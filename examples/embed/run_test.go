// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/driver/rawexec"
)

// Whoever tries the program with a command that does not exist is told so, and
// one who ends it is not told "<nil>".
func TestEmbedTellsWhatHappens(t *testing.T) {
	src, err := os.ReadFile("main.go")
	require.NoError(t, err)
	dir := t.TempDir()
	text := strings.NewReplacer("/var/lib/mynode", filepath.Join(dir, "data"), `"python3"`, `"no-such-command"`).Replace(string(src))
	file, bin := filepath.Join(dir, "main.go"), filepath.Join(dir, "embed")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	out, err := exec.Command("go", "build", "-o", bin, file).CombinedOutput()
	require.NoError(t, err, "%s", out)

	t.Cleanup(func() { clear(t, filepath.Join(dir, "data")) })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin)
	said := &seen{found: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = said, said
	require.NoError(t, cmd.Start())
	select {
	case <-said.found:
	case <-ctx.Done():
	}
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	err = cmd.Wait()
	require.NoError(t, err, "%s", said.text.String())
	require.Contains(t, said.text.String(), `web-0 server: Not Restarting: The task is not started again: rawexec: config.command "no-such-command": no such program`)
	require.NotContains(t, said.text.String(), "<nil>")
}

// seen keeps what is written and tells when it holds a text.
type seen struct {
	found chan struct{}
	text  bytes.Buffer
	once  bool
}

func (s *seen) Write(p []byte) (int, error) {
	s.text.Write(p)
	if !s.once && strings.Contains(s.text.String(), "Not Restarting") {
		s.once = true
		close(s.found)
	}
	return len(p), nil
}

// clear takes what the program's node still has off it.
func clear(t *testing.T, data string) {
	agent, err := nodekeep.New(nodekeep.Config{DataDir: data, Drivers: []nodekeep.DriverFunc{rawexec.New(rawexec.Config{Enabled: true})}})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	require.NoError(t, agent.Apply(ctx, nodekeep.Desired{Index: 2}))
	for {
		changed := agent.Changed()
		if st, ok := agent.Alloc("web-0"); !ok || st.Gone {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			require.FailNow(t, "the alloc is not collected")
		}
	}
	cancel()
	require.NoError(t, <-ended)
}
