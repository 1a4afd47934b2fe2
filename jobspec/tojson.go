// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"bytes"
	"encoding/json"
	"time"
)

// JSON is the job in the API's form, {"Job": …}, indented: what is in Tree and
// nothing else; a reader fills in the defaults. Parse gives the same job back.
// Durations are nanoseconds.
func (j *Job) JSON() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(map[string]any{"Job": j.Tree.api()}); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// api is the block as the API has it.
func (b *Block) api() map[string]any {
	m := map[string]any{}
	if b.lang.label != "" && len(b.Labels) > 0 {
		m[b.lang.child(b.lang.label).json] = b.Labels[0]
	}
	if b.Type == "scaling" && len(b.Labels) > 0 {
		m["Type"] = vertical + b.Label()
	}
	if b.Type == "job" {
		m["Name"] = b.Label()
	}
	for _, a := range b.Attrs {
		v := a.Value
		if d, ok := v.(time.Duration); ok {
			v = int64(d)
		}
		m[b.lang.child(a.Name).json] = v
	}
	for _, x := range b.Blocks {
		name := x.lang.json
		switch {
		case x.Type == "port":
			name = "ReservedPorts"
			if dynamic(x) == 1 {
				name = "DynamicPorts"
			}
		case b.Type == "task" && x.Type == "identity" && x.Get("name") == nil && m["Identity"] == nil && m[name] == nil:
			m["Identity"] = x.api()
			continue
		}
		switch {
		case x.lang.keyed:
			object, _ := m[name].(map[string]any)
			if object == nil {
				object = map[string]any{}
				m[name] = object
			}
			object[x.Label()] = x.api()
		case x.lang.kind == kindBlock:
			m[name] = x.api()
		default:
			list, _ := m[name].([]any)
			m[name] = append(list, x.api())
		}
	}
	return m
}
