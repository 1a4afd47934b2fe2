// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Change is a field in which two versions of an alloc differ.
type Change struct {
	Path string `json:"path"` // as in JSON, tasks by name: "tasks[web].driver"
	// Replace says that only a new alloc can have it. Any other change takes effect
	// in place: at once, at the next exit or start, or at the next rotation of logs.
	Replace bool `json:"replace,omitempty"`
}

// Diff lists what now has changed of old, in the order of the fields. Both are
// looked at with their defaults filled in; nil and empty are one, as are two ways
// of spacing a task's configuration. Where lists have not the same length, or
// tasks not the same names in the same order, the list is the change. A field
// that Diff has no rule for needs a new alloc. Neither alloc is changed.
func Diff(old, now *Alloc) []Change {
	d := differ{rules: changeRules()}
	d.walk("", "", reflect.ValueOf(old.WithDefaults()).Elem(), reflect.ValueOf(now.WithDefaults()).Elem())
	return d.changes
}

// Replaced are the paths of those changes that need a new alloc.
func Replaced(changes []Change) []string {
	var paths []string
	for _, c := range changes {
		if c.Replace {
			paths = append(paths, c.Path)
		}
	}
	return paths
}

const (
	inPlace = false
	replace = true
)

// changeRules says what a change of a field means, by its path with the indices
// left out. A rule holds for all that is below it; a field without one, above or
// below, is a fault that a test finds.
func changeRules() map[string]bool {
	rules := map[string]bool{}
	add := func(prefix string, class bool, names string) {
		for _, n := range strings.Fields(names) {
			rules[prefix+n] = class
		}
	}
	add("", replace, "id namespace job_id job_type group networks ports volumes")
	add("", inPlace, `name job_name index region datacenter parent_job_id deployment_id deployment_status previous_alloc canary
		desired_status desired_reason create_index modify_index create_time job_meta meta services settings`)
	const task = "tasks[]."
	add(task, replace, "name driver config user env lifecycle leader depends_on")
	add(task, inPlace, "origin meta restart kill_timeout kill_signal shutdown_delay")
	add(task+"resources.", replace, "networks devices granted")
	add(task+"resources.", inPlace, "cpu cores core_ids memory_mb memory_max_mb secrets_mb numa")
	add(task+"logs.", replace, "disabled")
	add(task+"logs.", inPlace, "max_files max_size")
	const attach = task + "attach."
	add(attach, replace, "artifacts mounts consul secrets payload csi_plugin")
	add(attach, inPlace, "services actions schedule scaling")
	add(attach+"templates[].", replace, `source destination data perms uid gid left_delimiter right_delimiter env once vault_grace wait
		error_on_missing_key`)
	add(attach+"templates[].", inPlace, "change_mode change_signal change_script splay")
	add(attach+"vault.", replace, "cluster role namespace policies env disable_file allow_token_expiration")
	add(attach+"vault.", inPlace, "change_mode change_signal")
	add(attach+"identities[].", replace, "name aud env file filepath service_name ttl")
	add(attach+"identities[].", inPlace, "change_mode change_signal")
	return rules
}

type differ struct {
	rules   map[string]bool
	changes []Change
}

// walk goes down to where there is a rule. pattern is path without indices.
func (d *differ) walk(path, pattern string, a, b reflect.Value) {
	if class, ok := d.rules[pattern]; ok {
		if !equal(a, b) {
			d.changes = append(d.changes, Change{path, class})
		}
		return
	}
	switch {
	case a.Kind() == reflect.Pointer && !a.IsNil() && !b.IsNil():
		d.walk(path, pattern, a.Elem(), b.Elem())
	case a.Kind() == reflect.Struct && a.Type() != reflect.TypeFor[time.Time]():
		for i := range a.NumField() {
			name := fieldName(a.Type().Field(i))
			d.walk(below(path, name), below(pattern, name), a.Field(i), b.Field(i))
		}
	case a.Kind() == reflect.Slice && sameLists(a, b):
		for i := range a.Len() {
			elem := at(path, i)
			if t, ok := a.Index(i).Interface().(Task); ok {
				elem = path + "[" + t.Name + "]"
			}
			d.walk(elem, pattern+"[]", a.Index(i), b.Index(i))
		}
	default:
		if !equal(a, b) {
			d.changes = append(d.changes, Change{path, replace})
		}
	}
}

// sameLists says that the elements of two lists can be told one by one.
func sameLists(a, b reflect.Value) bool {
	names := func(v reflect.Value) (out []string) {
		if tasks, ok := v.Interface().([]Task); ok {
			for i := range tasks {
				out = append(out, tasks[i].Name)
			}
		}
		return out
	}
	return a.Len() == b.Len() && slices.Equal(names(a), names(b))
}

func below(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func fieldName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// equal compares two values by their JSON.
func equal(a, b reflect.Value) bool {
	x, errX := json.Marshal(a.Interface())
	y, errY := json.Marshal(b.Interface())
	return errX == nil && errY == nil && (bytes.Equal(x, y) || empty(x) && empty(y))
}

func empty(js []byte) bool {
	return string(js) == "null" || string(js) == "[]" || string(js) == "{}"
}
