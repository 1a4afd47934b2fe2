// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocdir

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// BenchmarkLife is what the directories of a one-task alloc cost, each part by
// itself, on the file system of the temporary directory and on a tmpfs.
func BenchmarkLife(b *testing.B) {
	for _, on := range []string{"disk", "tmpfs"} {
		b.Run(on, func(b *testing.B) {
			tmp := b.TempDir()
			if on == "tmpfs" {
				needMount(b)
				require.NoError(b, unix.Mount("tmpfs", tmp, "tmpfs", 0, ""))
				b.Cleanup(func() { require.NoError(b, unix.Unmount(tmp, 0)) })
			}
			private := filepath.Join(tmp, "private")
			if os.Geteuid() == 0 {
				require.NoError(b, MountPrivate(b.Context(), private, 0))
				b.Cleanup(func() { require.NoError(b, unix.Unmount(private, 0)) })
			}
			benchLife(b, Config{Root: filepath.Join(tmp, "root"), Private: private})
		})
	}
}

func benchLife(b *testing.B, cfg Config) {
	n := 0
	newOne := func() *Dir {
		n++
		cfg.AllocID = fmt.Sprint("a", n)
		d, err := New(cfg)
		if err != nil {
			b.Fatal(err)
		}
		return d
	}
	build := func(d *Dir) {
		if err := d.Build(b.Context()); err != nil {
			b.Fatal(err)
		}
		if _, _, err := d.BuildTask(b.Context(), "web", TaskOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	destroy := func(d *Dir) {
		if err := d.Destroy(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("build", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			d := newOne()
			build(d)
			b.StopTimer()
			destroy(d)
			b.StartTimer()
		}
	})
	b.Run("rebuild", func(b *testing.B) {
		d := newOne()
		for b.Loop() {
			build(d)
		}
		destroy(d)
	})
	b.Run("destroy", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			d := newOne()
			build(d)
			b.StartTimer()
			destroy(d)
		}
	})
}
