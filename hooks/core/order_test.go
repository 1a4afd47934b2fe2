// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package core

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/spec"
)

var update = flag.Bool("update", false, "write golden files")

// D29: the whole order of the built-in hooks, for an alloc that needs all of them,
// with the callbacks each has. The runners sort by stage and keep the given order
// within one; what gives back runs reversed.
func TestOrder(t *testing.T) {
	cfg := Config{
		AllocScope: func(id string) string { return id },
		TaskScopes: func(string) bool { return true },
		Dir:        func(string) (*allocdir.Dir, error) { return nil, nil },
		Previous:   &Previous{Disk: true},

		HostVolumes: HostVolumes{},
		Devices:     noDevices{},
		Users:       &Users{},
		Stats:       &Stats{},
	}
	al := &spec.Alloc{ID: "new", PreviousAlloc: "old", Volumes: map[string]spec.Volume{"v": {}}, Tasks: []spec.Task{{Name: "t"}}}
	al.Tasks[0].Attach.Mounts = []spec.VolumeMount{{Volume: "v"}}
	al.Tasks[0].Attach.Payload = &spec.DispatchPayload{}
	al.Tasks[0].Resources.Devices = []spec.DeviceRequest{{Name: "gpu"}}
	al.Settings.Disk.Sticky = true
	al = al.WithDefaults()
	var out strings.Builder
	var hooks []any
	for _, f := range AllocHooks(cfg) {
		h, err := f(al)
		require.NoError(t, err)
		hooks = append(hooks, h)
	}
	fmt.Fprint(&out, "alloc\n", listing(hooks))
	hooks = nil
	for _, f := range TaskHooks(cfg) {
		h, err := f(al, &al.Tasks[0])
		require.NoError(t, err)
		hooks = append(hooks, h)
	}
	fmt.Fprint(&out, "task\n", listing(hooks))

	const golden = "testdata/order.txt"
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(out.String()), 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), out.String(), "run with -update if that is meant")
}

type noDevices struct{ Devices }

// listing sorts hooks as the runners do and names their callbacks.
func listing(hooks []any) string {
	field := func(h any, name string) reflect.Value { return reflect.ValueOf(h).Elem().FieldByName(name) }
	slices.SortStableFunc(hooks, func(a, b any) int { return int(field(a, "Stage").Int() - field(b, "Stage").Int()) })
	var out strings.Builder
	for _, h := range hooks {
		v := reflect.ValueOf(h).Elem()
		var has []string
		for i := range v.NumField() {
			if f := v.Field(i); f.Kind() == reflect.Func && !f.IsNil() {
				has = append(has, strings.ToLower(v.Type().Field(i).Name))
			}
		}
		fmt.Fprintf(&out, "%4d  %-10s %s\n", field(h, "Stage").Int(), field(h, "Name").String(), strings.Join(has, " "))
	}
	return out.String()
}
