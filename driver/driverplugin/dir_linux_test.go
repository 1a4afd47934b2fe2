// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin"
	"github.com/nodekeep/nodekeep/drivermanager"
)

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	list, err := driverplugin.Dir(filepath.Join(dir, "none")).List()
	require.NoError(t, err)
	require.Empty(t, list)
	for name, mode := range map[string]os.FileMode{"b-driver": 0o755, "a-driver": 0o700, "readme.txt": 0o644, ".hidden": 0o755} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), mode))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	require.NoError(t, os.Symlink("b-driver", filepath.Join(dir, "c-link")))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "d-broken")))
	d := driverplugin.Dir(dir)
	list, err = d.List()
	require.NoError(t, err)
	var names []string
	for _, p := range list {
		names = append(names, p.Name)
		require.NotEmpty(t, p.ID)
	}
	require.Equal(t, []string{"a-driver", "b-driver", "c-link"}, names)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a-driver"), []byte("#!/bin/sh\n# newer\n"), 0o700))
	again, err := d.List()
	require.NoError(t, err)
	require.NotEqual(t, list[0].ID, again[0].ID, "an upgrade is seen")
	require.Equal(t, list[1], again[1])

	for _, bad := range []string{"", ".", "..", "../x", "sub/x", "/bin/sh"} {
		_, err := d.Launch(bounded(t), bad, drivermanager.Launch{Dir: filepath.Join(shortDir(t), "p")})
		require.ErrorContains(t, err, "is no name of a program")
	}
	require.Error(t, d.Remove(json.RawMessage(`x`)))
	require.NoError(t, d.Remove(json.RawMessage(`{}`)))
	p, err := d.Reattach(bounded(t), "x", json.RawMessage(`{"Pid":1}`), drivermanager.Launch{})
	require.ErrorIs(t, err, driverplugin.ErrStale)
	require.Nil(t, p)
	_, err = d.Reattach(bounded(t), "x", json.RawMessage(`"what"`), drivermanager.Launch{})
	require.ErrorIs(t, err, driverplugin.ErrStale)
}

// A start over the wire against one in process.
func BenchmarkStart(b *testing.B) {
	for _, name := range []string{"in process", "wire"} {
		b.Run(name, func(b *testing.B) {
			d := newFake("fake")
			if name == "wire" {
				exe, err := os.Executable()
				require.NoError(b, err)
				dir, err := os.MkdirTemp("", "nkb")
				require.NoError(b, err)
				p, err := driverplugin.Launch(b.Context(), exe, drivermanager.Launch{Dir: filepath.Join(dir, "p"), Env: []string{roleEnv + "=fake"}})
				require.NoError(b, err)
				defer func() {
					require.NoError(b, p.Close(b.Context()))
					require.NoError(b, os.RemoveAll(dir))
				}()
				d = p.Driver()
			}
			cfg := fullTask
			for b.Loop() {
				if _, err := d.Start(b.Context(), cfg); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := d.Destroy(b.Context(), driver.TaskRef{ID: cfg.ID, Cgroup: cfg.Cgroup}, true); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
