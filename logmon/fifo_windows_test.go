// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// A named pipe behaves like a FIFO: writers come and go, Drain is exact, Close
// ends all.
func TestPipe(t *testing.T) {
	path := fmt.Sprintf(`\\.\pipe\nodekeep-test-%d`, os.Getpid())
	require.ErrorIs(t, Create("no-pipe", Owner{}), ErrNotFIFO)
	_, err := OpenWriter(path)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, Create(path, Owner{}))
	r, err := OpenReader(path)
	require.NoError(t, err)
	require.ErrorIs(t, Create(path, Owner{}), fs.ErrExist)
	dir := t.TempDir()
	p := NewPump(r, NewRotator(RotateConfig{Dir: dir, Base: base}), func(s string) { t.Error(s) })
	done := make(chan struct{})
	go func() { p.Run(); close(done) }()
	want := ""
	for i := range 3 {
		w, err := OpenWriter(path)
		require.NoError(t, err)
		other, err := OpenWriter(path)
		require.NoError(t, err)
		line := fmt.Sprintf("attempt %d\n", i)
		want += line
		_, err = io.WriteString(w, line)
		require.NoError(t, err)
		drained := make(chan struct{})
		p.Drain(func() { close(drained) })
		<-drained
		require.Equal(t, want, log(t, dir))
		require.NoError(t, w.Close())
		require.NoError(t, other.Close())
	}
	p.Close()
	<-done
	require.Equal(t, want, log(t, dir))
}
