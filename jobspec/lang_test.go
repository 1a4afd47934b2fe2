// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nodekeep/nodekeep/spec"
	"github.com/stretchr/testify/require"
)

// Every argument and block that someone on the node acts on has a field in spec,
// of a type that it fits, or says in the table that it has none.
func TestLanguageFields(t *testing.T) {
	for _, n := range language().inside {
		if n.name == "job" {
			fields(t, n, reflect.New(reflect.TypeFor[spec.Alloc]()).Elem(), "job")
		}
	}
}

func fields(t *testing.T, n *node, in reflect.Value, path string) {
	for _, c := range n.inside {
		path := path + "." + c.name
		in := in
		if c.name == "group" {
			fields(t, c, in, path)
			continue
		}
		if c.field == "-" || c.field == "=" {
			if c.field == "=" {
				fields(t, c, in, path)
			}
			continue
		}
		f, _, ok := c.place(in)
		if !ok {
			// A scheduler's, or health's, which is read by itself; sugar is gone before.
			require.Contains(t, []Actor{ByScheduler, ByConnect, ByHealth, ByVault, BySecret}, c.by, path)
			continue
		}
		typ := f.Type()
		if c.block() {
			for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map {
				if typ.Kind() == reflect.Map && typ.Elem().Kind() != reflect.Struct {
					break
				}
				typ = typ.Elem()
			}
			if typ.Kind() == reflect.Struct {
				fields(t, c, reflect.New(typ).Elem(), path)
			} else {
				require.Equal(t, reflect.Map, typ.Kind(), path)
			}
			continue
		}
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		want := map[kind][]reflect.Kind{
			kindPlain: {reflect.String}, kindText: {reflect.String}, kindRaw: {reflect.String}, kindBool: {reflect.Bool},
			kindInt: {reflect.Int, reflect.Int64}, kindDuration: {reflect.Int64}, kindPlains: {reflect.Slice}, kindTexts: {reflect.Slice}, kindInts: {reflect.Slice},
			kindMap: {reflect.Map}, kindLists: {reflect.Map}, kindAny: {reflect.Map, reflect.Slice},
		}[c.kind]
		require.Contains(t, want, typ.Kind(), path)
	}
}

// A field of spec that no line of the table fills is one that only a scheduler
// sets, or that is listed here.
func TestLanguageCoversSpec(t *testing.T) {
	filled := map[string]bool{}
	var walk func(n *node, in reflect.Value)
	walk = func(n *node, in reflect.Value) {
		for _, c := range n.inside {
			if c.name == "group" || c.field == "=" {
				walk(c, in)
				continue
			}
			f, tag, ok := c.place(in)
			if !ok {
				continue
			}
			filled[in.Type().Name()+"."+tag] = true
			for f.Kind() == reflect.Pointer || f.Kind() == reflect.Slice || f.Kind() == reflect.Map {
				f = reflect.New(f.Type().Elem()).Elem()
			}
			if f.Kind() == reflect.Struct {
				walk(c, f)
			}
		}
	}
	walk(language().child("job"), reflect.New(reflect.TypeFor[spec.Alloc]()).Elem())
	var missing []string
	for _, typ := range []reflect.Type{
		reflect.TypeFor[spec.Task](), reflect.TypeFor[spec.Attachments](), reflect.TypeFor[spec.Service](), reflect.TypeFor[spec.Check](),
		reflect.TypeFor[spec.Template](), reflect.TypeFor[spec.Artifact](), reflect.TypeFor[spec.Vault](), reflect.TypeFor[spec.Consul](),
		reflect.TypeFor[spec.Identity](), reflect.TypeFor[spec.Secret](), reflect.TypeFor[spec.Action](), reflect.TypeFor[spec.Network](),
		reflect.TypeFor[spec.Port](), reflect.TypeFor[spec.Volume](), reflect.TypeFor[spec.VolumeMount](), reflect.TypeFor[spec.Resources](),
		reflect.TypeFor[spec.DeviceRequest](), reflect.TypeFor[spec.EphemeralDisk](), reflect.TypeFor[spec.Schedule](), reflect.TypeFor[spec.CheckRestart](),
		reflect.TypeFor[spec.RestartPolicy](), reflect.TypeFor[spec.ExitRule](), reflect.TypeFor[spec.Dependency](),
	} {
		for i := range typ.NumField() {
			tag, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			name := typ.Name() + "." + tag
			if typ.Name() == "Attachments" {
				name = "Task.attach." + tag
			}
			if !filled[name] && tag != "attach" {
				missing = append(missing, name)
			}
		}
	}
	slices.Sort(missing)
	require.Equal(t, []string{
		"Resources.core_ids", "Resources.granted", // the scheduler's choice
		"Task.origin", // comes with config
	}, missing)
}

func TestReadLanguage(t *testing.T) {
	for text, want := range map[string]string{
		"    a int":              "inside of nothing",
		"use nowhere":            `no def "nowhere"`,
		"a int colour=red":       `unknown option "colour=red"`,
		"a int min=few":          `option "min=few"`,
		"a duration zero=always": `option "zero=always"`,
	} {
		_, err := readLanguage("\n" + text)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "language.txt:2")
	}
	require.Equal(t, "1.10", newer("1.9", "1.10"))
	require.Equal(t, "1.9", newer("1.9", ""))
	require.Equal(t, "2.0", newer("2.0", "1.11"))
	require.Equal(t, "own", newer("own", "2.0"))
}

// The package's documentation has the table that the code has.
func TestLanguageDoc(t *testing.T) {
	var want strings.Builder
	for _, e := range Language() {
		by := make([]string, len(e.By))
		for i, a := range e.By {
			by[i] = string(a)
		}
		want.WriteString("//\t" + pad(e.Block, 30) + pad(e.Since, 7) + strings.Join(by, ", ") + "\n")
	}
	if *updateDoc {
		rewriteDoc(t, want.String())
	}
	require.Contains(t, docSource(t), want.String(), "run go test -run TestLanguageDoc -update-doc")
}
