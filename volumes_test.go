// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/hooks/core"
	"github.com/nodekeep/nodekeep/spec"
)

// with gives an alloc a volume that its task mounts.
func with(al *spec.Alloc, v spec.Volume, m spec.VolumeMount) *spec.Alloc {
	v.Name, m.Volume = "v", "v"
	al.Volumes = map[string]spec.Volume{"v": v}
	al.Tasks[0].Attach.Mounts = []spec.VolumeMount{m}
	return al
}

// The driver is told what to mount at every start, as narrow as the strictest of
// the three who have a say.
func TestHostVolumes(t *testing.T) {
	f := fake()
	cfg := config(t, f)
	dir := t.TempDir()
	cfg.Storage.HostVolumes = core.HostVolumes{"data": {Path: dir}, "data[2]": {Path: dir}, "ro": {Path: dir, ReadOnly: true}}
	n := start(t, cfg)
	host := spec.Volume{Type: "host", Source: "data"}
	per, ro, third := host, host, alloc("third", 1, spec.JobService)
	per.PerAlloc, ro.Source, ro.ReadOnly, third.Index = true, "ro", true, 2
	n.apply(1, with(alloc("one", 1, spec.JobService), host, spec.VolumeMount{Destination: "/d"}),
		with(alloc("two", 1, spec.JobService), ro, spec.VolumeMount{Destination: "/d"}),
		with(third, per, spec.VolumeMount{Destination: "/d", ReadOnly: true, PropagationMode: "bidirectional"}))
	want := map[string]driver.Mount{
		"one":   {Source: dir, Target: "/d", Volume: "v", Propagation: "private"},
		"two":   {Source: dir, Target: "/d", Volume: "v", Propagation: "private", ReadOnly: true},
		"third": {Source: dir, Target: "/d", Volume: "v", Propagation: "bidirectional", ReadOnly: true},
	}
	for id := range want {
		n.status(id, allocrunner.Running)
	}
	got := map[string]driver.Mount{}
	for _, c := range f.Configs() {
		require.Len(t, c.Mounts, 1)
		got[filepath.Dir(filepath.Dir(c.ID))] = c.Mounts[0]
	}
	require.Equal(t, want, got)
	n.apply(2)
	for id := range want {
		n.absent(id)
	}
}

// What cannot be mounted is refused before anything of the alloc is made.
func TestHostVolumesRefused(t *testing.T) {
	f := fake()
	cfg := config(t, f)
	cfg.Storage.HostVolumes = core.HostVolumes{"ro": {Path: t.TempDir(), ReadOnly: true}}
	n := start(t, cfg)
	for says, v := range map[string]spec.Volume{
		`needs the host volume "none"; this node has ro`:              {Type: "host", Source: "none"},
		`is of type "csi": only host volumes can be had on this node`: {Type: "csi", Source: "ro"},
		`but the host volume "ro" is read-only: set read_only`:        {Type: "host", Source: "ro"},
		`needs the host volume "ro[0]"; this node has ro`:             {Type: "host", Source: "ro", PerAlloc: true},
	} {
		var refused *RefusedError
		err := n.Apply(t.Context(), Desired{Index: 1, Full: true, Allocs: []*spec.Alloc{
			with(alloc("a", 1, spec.JobService), v, spec.VolumeMount{Destination: "/d"})}})
		require.ErrorAs(t, err, &refused, says)
		require.ErrorContains(t, err, says)
	}
	gone := t.TempDir()
	n.stop()
	cfg.Storage.HostVolumes = core.HostVolumes{"data": {Path: gone}}
	n = start(t, cfg)
	require.NoError(t, os.Remove(gone))
	n.apply(2, with(alloc("b", 2, spec.JobService), spec.Volume{Type: "host", Source: "data"}, spec.VolumeMount{Destination: "/d"}))
	require.Contains(t, n.over("b").Description, "is no directory on this host")
	require.Zero(t, f.Lives())

	cfg.Storage.HostVolumes, cfg.DataDir = core.HostVolumes{"x": {Path: "relative"}}, ""
	_, err := New(cfg)
	require.ErrorContains(t, err, `Config.Storage.HostVolumes[x].Path is "relative": must be an absolute path`)
}

// A volume that is away when the agent comes back is looked for again; the task,
// which has it, goes on.
func TestHostVolumeAway(t *testing.T) {
	for name, away := range map[string]func(*Config, string){
		"path":   func(_ *Config, dir string) { _ = os.Remove(dir) },
		"config": func(c *Config, _ string) { c.Storage.HostVolumes = core.HostVolumes{} },
	} {
		t.Run(name, func(t *testing.T) {
			f := fake()
			cfg := config(t, f)
			dir := filepath.Join(t.TempDir(), "v")
			require.NoError(t, os.Mkdir(dir, 0o700))
			cfg.Storage.HostVolumes = core.HostVolumes{"data": {Path: dir}}
			n := start(t, cfg)
			al := with(alloc("a", 1, spec.JobService), spec.Volume{Type: "host", Source: "data"}, spec.VolumeMount{Destination: "/d"})
			n.apply(1, al)
			n.status("a", allocrunner.Running)
			n.stop()
			away(&cfg, dir)
			n = start(t, cfg)
			n.apply(1, al)
			n.status("a", allocrunner.Running)
			require.Len(t, f.Alive(), 1)
			n.apply(2)
			n.absent("a")
			require.Equal(t, 1, f.Lives())
			f.Check(t)
		})
	}
}

// A dispatched payload lies in local when the task starts, and is for the task only.
func TestPayload(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	al, empty := alloc("a", 1, spec.JobBatch), alloc("empty", 1, spec.JobBatch)
	al.Tasks[0].Attach.Payload = &spec.DispatchPayload{File: "in/data.json", Payload: []byte(`{"n":1}`)}
	empty.Tasks[0].Attach.Payload = &spec.DispatchPayload{File: "data"}
	bad := alloc("bad", 1, spec.JobBatch)
	bad.Tasks[0].Attach.Payload = &spec.DispatchPayload{File: "../../escape", Payload: []byte("x")}
	n.apply(1, al, empty, bad)
	n.status("a", allocrunner.Running)
	n.status("empty", allocrunner.Running)
	require.Equal(t, allocrunner.Failed, n.over("bad").Status)
	dir, _ := n.Dir("a")
	file := filepath.Join(dir.Task("t").Local, "in", "data.json")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, `{"n":1}`, string(data))
	fi, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), fi.Mode())
	// It is the task's from then on.
	require.NoError(t, os.WriteFile(file, []byte("changed"), 0o600))
	n = n.again()
	n.apply(1, al, empty, bad)
	require.NoError(t, n.Restart(t.Context(), "a", allocrunner.RestartRequest{}))
	n.until("a", "restarted", func(s AllocStatus, _ bool) bool { return f.Lives() == 3 && s.Status == allocrunner.Running })
	data, err = os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "changed", string(data))

	dir, _ = n.Dir("empty")
	entries, err := os.ReadDir(dir.Task("t").Local)
	require.NoError(t, err)
	require.Empty(t, entries)
}
