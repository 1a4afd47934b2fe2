// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/spec"
)

// Every attachment is a need, but those that are nobody's business on a node: one
// that is added must be decided about.
func TestNeedsOfAttachments(t *testing.T) {
	free := []string{"actions", "scaling"}
	at := reflect.TypeFor[spec.Attachments]()
	for i := range at.NumField() {
		name, _, _ := strings.Cut(at.Field(i).Tag.Get("json"), ",")
		al := &spec.Alloc{Tasks: make([]spec.Task, 1)}
		v := reflect.ValueOf(&al.Tasks[0].Attach).Elem().Field(i)
		switch v.Kind() {
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		case reflect.Map:
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(reflect.ValueOf("x"), reflect.Zero(v.Type().Elem()))
		default:
			v.Set(reflect.New(v.Type().Elem()))
		}
		if slices.Contains(free, name) {
			require.Empty(t, al.Needs(), name)
			continue
		}
		require.Equal(t, []spec.Need{{Feature: name, Field: "tasks[0].attach." + name}}, al.Needs())
	}
}

func TestNeedsOfAlloc(t *testing.T) {
	al := &spec.Alloc{
		Networks: []spec.Network{{}, {Mode: "host"}, {Mode: "bridge"}},
		Services: make([]spec.Service, 2), Volumes: map[string]spec.Volume{"v": {}},
		Tasks: []spec.Task{{}, {Resources: spec.Resources{Devices: make([]spec.DeviceRequest, 1)}}},
	}
	require.Equal(t, []spec.Need{{"networks", "networks[2].mode"}, {"services", "services"},
		{"volumes", "volumes"}, {"devices", "tasks[1].resources.devices"}}, al.Needs())
	require.Empty(t, (&spec.Alloc{Tasks: make([]spec.Task, 3)}).Needs())
}
