// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/nodekeep/nodekeep/spec"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name string, v any) {
	t.Helper()
	got, err := json.MarshalIndent(v, "", "  ")
	require.NoError(t, err)
	got = append(got, '\n')
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

// filled is an alloc with every field of the vocabulary set, so that the golden
// file holds every name of the JSON form: a name that changes is a break.
func filled() *spec.Alloc {
	n := 0
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		n++
		switch {
		case v.Type() == reflect.TypeFor[time.Time]():
			v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)))
			return
		case v.Type() == reflect.TypeFor[json.RawMessage]():
			v.SetBytes([]byte(`{"command":"${attr.x}"}`))
			return
		}
		switch v.Kind() {
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem())
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0))
		case reflect.Map:
			k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(k)
			fill(e)
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(k, e)
		case reflect.Struct:
			for i := range v.NumField() {
				fill(v.Field(i))
			}
		case reflect.String:
			v.SetString(fmt.Sprintf("s%d", n))
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Int, reflect.Int64:
			v.SetInt(int64(n))
		case reflect.Uint64, reflect.Uint8:
			v.SetUint(uint64(n))
		case reflect.Interface:
			v.Set(reflect.ValueOf(fmt.Sprintf("any%d", n)))
		default:
			panic(v.Type())
		}
	}
	var a spec.Alloc
	fill(reflect.ValueOf(&a).Elem())
	return &a
}

func roundTrip(t *testing.T, a *spec.Alloc) *spec.Alloc {
	t.Helper()
	data, err := json.Marshal(a)
	require.NoError(t, err)
	var b spec.Alloc
	require.NoError(t, json.Unmarshal(data, &b))
	return &b
}

func TestJSON(t *testing.T) {
	a := filled()
	golden(t, "filled.golden.json", a)
	require.Equal(t, a, roundTrip(t, a))
	require.Equal(t, a.WithDefaults(), a, "there is nothing left to default")
}

// What an older scheduler or a hand leaves out takes today's defaults; what it
// says stays, zeros included; what we do not know is passed over.
func TestMissingFields(t *testing.T) {
	data, err := os.ReadFile("testdata/older.json")
	require.NoError(t, err)
	var a spec.Alloc
	require.NoError(t, json.Unmarshal(data, &a))
	require.NoError(t, a.Validate())
	d := a.WithDefaults()
	golden(t, "older.golden.json", d)
	require.Equal(t, d, roundTrip(t, d))

	batch := spec.DefaultRestart(spec.JobBatch)
	partly := batch
	partly.Mode = spec.RestartDelay
	never := batch
	never.Attempts = 0
	require.Equal(t, batch, *d.Task("nothing").Restart)
	require.Equal(t, never, *d.Task("never").Restart)
	require.Equal(t, partly, *d.Task("partly").Restart)
	require.Equal(t, spec.RestartPolicy{Attempts: 1, Mode: spec.RestartFail}, *d.Task("all").Restart)
	require.Equal(t, spec.LogConfig{MaxFiles: 2, MaxSize: 10 << 20}, *d.Task("partly").Logs)
	require.Zero(t, *d.Task("all").Attach.Templates[0].Splay)

	require.Error(t, json.Unmarshal([]byte(`{"tasks": [{"restart": {"attempts": "two"}}]}`), &a))
}

func TestDefaults(t *testing.T) {
	var none *spec.Alloc
	require.Nil(t, none.WithDefaults())
	require.Nil(t, none.Task("x"))

	a := &spec.Alloc{ID: "i", JobID: "j", Group: "g", Tasks: []spec.Task{{Name: "t", Driver: "d", Resources: spec.Resources{
		Devices: []spec.DeviceRequest{{Name: "gpu"}}, Numa: &spec.Numa{}, Networks: []spec.Network{{}},
	}, Attach: spec.Attachments{
		Templates: []spec.Template{{Data: "x", Destination: "y", ChangeScript: &spec.ChangeScript{Command: "c"}, ChangeMode: "script"}},
		Artifacts: []spec.Artifact{{Source: "s"}},
		Mounts:    []spec.VolumeMount{{Volume: "v", Destination: "d"}},
		Vault:     &spec.Vault{},
		Services:  []spec.Service{{Name: "s"}},
	}}},
		Volumes:  map[string]spec.Volume{"v": {Source: "s"}},
		Settings: spec.AllocSettings{Health: &spec.HealthPolicy{}},
	}
	before := a.Clone()
	d := a.WithDefaults()
	require.Equal(t, before, a, "the receiver is not changed")
	require.NoError(t, a.Validate())
	require.NoError(t, d.Validate())
	require.Equal(t, d, d.WithDefaults(), "twice is once")

	require.Equal(t, "j.g[0]", d.Name)
	require.Equal(t, spec.JobService, d.JobType)
	require.Equal(t, spec.DesiredRun, d.DesiredStatus)
	require.Equal(t, []string{"default", "global", "j"}, []string{d.Namespace, d.Region, d.JobName})
	require.Equal(t, spec.HealthPolicy{Check: "checks", MinHealthy: 10 * time.Second, Deadline: 5 * time.Minute, ProgressDeadline: 10 * time.Minute}, *d.Settings.Health)
	require.EqualValues(t, 300, d.Settings.Disk.SizeMB)
	require.Equal(t, spec.Volume{Name: "v", Type: "host", Source: "s"}, d.Volumes["v"])
	task := d.Task("t")
	require.Equal(t, 5*time.Second, task.KillTimeout)
	require.Equal(t, spec.DefaultRestart(spec.JobSystem), *task.Restart)
	require.Equal(t, spec.DefaultLogs(), *task.Logs)
	require.EqualValues(t, []int64{100, 300, 1}, []int64{task.Resources.CPU, task.Resources.MemoryMB, task.Resources.SecretsMB})
	require.True(t, *task.Attach.Vault.Env)
	require.Equal(t, 5*time.Second, *task.Attach.Templates[0].Splay)
}

func TestTaskKinds(t *testing.T) {
	for _, c := range []struct {
		lifecycle                         *spec.Lifecycle
		main, sidecar, onService, onBatch bool
	}{
		{nil, true, false, true, false},
		{&spec.Lifecycle{}, true, false, true, false},
		{&spec.Lifecycle{Hook: spec.LifecyclePrestart}, false, false, false, false},
		{&spec.Lifecycle{Hook: spec.LifecyclePrestart, Sidecar: true}, false, true, true, true},
		{&spec.Lifecycle{Hook: spec.LifecyclePoststart}, false, false, false, false},
		{&spec.Lifecycle{Hook: spec.LifecyclePoststart, Sidecar: true}, false, true, true, true},
		{&spec.Lifecycle{Hook: spec.LifecyclePoststop}, false, false, false, false},
	} {
		task := spec.Task{Lifecycle: c.lifecycle}
		require.Equal(t, c.main, task.IsMain(), "%+v", c.lifecycle)
		require.Equal(t, c.sidecar, task.IsSidecar(), "%+v", c.lifecycle)
		require.Equal(t, c.onService, task.RestartsOnSuccess(spec.JobSystem), "%+v", c.lifecycle)
		require.Equal(t, c.onBatch, task.RestartsOnSuccess(spec.JobSysbatch), "%+v", c.lifecycle)
	}
}

func TestDefaultRestart(t *testing.T) {
	service := spec.RestartPolicy{Attempts: 2, Interval: 30 * time.Minute, Delay: 15 * time.Second, Mode: spec.RestartFail}
	batch := spec.RestartPolicy{Attempts: 3, Interval: 24 * time.Hour, Delay: 15 * time.Second, Mode: spec.RestartFail}
	for jt, want := range map[spec.JobType]spec.RestartPolicy{
		"": service, spec.JobService: service, spec.JobSystem: service, spec.JobBatch: batch, spec.JobSysbatch: batch,
	} {
		require.Equal(t, want, spec.DefaultRestart(jt), jt)
		require.Equal(t, want, (&spec.Task{}).RestartPolicy(jt), jt)
	}
	none := spec.Task{Restart: &spec.RestartPolicy{}}
	require.Equal(t, spec.RestartPolicy{Mode: spec.RestartFail}, none.RestartPolicy(spec.JobService))
}

func TestCloneSharesNothing(t *testing.T) {
	a := filled()
	a.Meta["nil"] = ""
	a.Settings.Reschedule = map[string]any{"list": []any{map[string]any{"k": 1.5}, nil}}
	c := a.Clone()
	require.Equal(t, a, c)
	var walk func(path string, a, b reflect.Value)
	walk = func(path string, a, b reflect.Value) {
		switch a.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			if a.IsNil() {
				return
			}
			require.NotEqual(t, a.Pointer(), b.Pointer(), path)
		}
		switch a.Kind() {
		case reflect.Pointer, reflect.Interface:
			if !a.IsNil() {
				walk(path, a.Elem(), b.Elem())
			}
		case reflect.Slice:
			for i := range a.Len() {
				walk(fmt.Sprintf("%s[%d]", path, i), a.Index(i), b.Index(i))
			}
		case reflect.Map:
			for _, k := range a.MapKeys() {
				walk(fmt.Sprintf("%s[%v]", path, k), a.MapIndex(k), b.MapIndex(k))
			}
		case reflect.Struct:
			for i := range a.NumField() {
				if a.Type().Field(i).IsExported() {
					walk(path+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))
				}
			}
		}
	}
	walk("", reflect.ValueOf(a), reflect.ValueOf(c))
	require.Equal(t, a.Tasks[0], *a.Tasks[0].Clone())
	require.Nil(t, (*spec.Task)(nil).Clone())
}

func FuzzAlloc(f *testing.F) {
	for _, name := range []string{"older.json", "filled.golden.json", "older.golden.json"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte(`{"tasks":[{"name":"a","depends_on":[{"task":"b"}]},{"name":"b","depends_on":[{"task":"a"}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var a spec.Alloc
		if json.Unmarshal(data, &a) != nil {
			return
		}
		d := a.WithDefaults()
		if err := a.Validate(); err == nil {
			require.NoError(t, d.Validate(), "defaults are right")
		} else {
			require.NotEmpty(t, spec.Faults(err))
			require.NotEmpty(t, err.Error())
		}
		require.Equal(t, d, d.WithDefaults())
		first, err := json.Marshal(d)
		require.NoError(t, err)
		second, err := json.Marshal(roundTrip(t, d))
		require.NoError(t, err)
		require.True(t, bytes.Equal(first, second), "%s\n%s", first, second)
	})
}
