// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskenv

import (
	"slices"
	"strconv"
	"strings"

	"github.com/nodekeep/nodekeep/spec"
)

// generate fills in what follows from the alloc and the node alone.
func (b *base) generate() {
	a, n := b.cfg.Alloc, &b.cfg.Node
	b.add("ALLOC_ID", a.ID)
	b.add("SHORT_ALLOC_ID", a.ID[:min(8, len(a.ID))])
	b.add("ALLOC_NAME", or(a.Name, spec.AllocName(a.JobID, a.Group, a.Index)))
	b.add("ALLOC_INDEX", strconv.Itoa(a.Index))
	b.add("GROUP_NAME", a.Group)
	b.add("JOB_ID", a.JobID)
	b.add("JOB_NAME", or(a.JobName, a.JobID))
	b.add("JOB_PARENT_ID", a.ParentJobID)
	b.add("NAMESPACE", a.Namespace)
	b.add("REGION", or(a.Region, n.Region))
	b.add("DC", or(a.Datacenter, n.Datacenter))
	b.add("PARENT_CGROUP", b.cfg.ParentCgroup)

	task := a.Task(b.cfg.Task)
	if task != nil {
		b.add("TASK_NAME", task.Name)
		b.addResources(&task.Resources)
		b.env = task.Env
	}
	b.addPorts(a.Ports)
	if task != nil {
		b.addMeta(a.JobMeta, a.Meta, task.Meta)
	} else {
		b.addMeta(a.JobMeta, a.Meta)
	}
}

// add appends a literal variable; an empty one is left out.
func (b *base) add(name, value string) {
	if value != "" {
		b.generated = append(b.generated, pair{b.prefix + name, value})
	}
}

func (b *base) addResources(r *spec.Resources) {
	if r.CPU > 0 {
		b.add("CPU_LIMIT", strconv.FormatInt(r.CPU, 10))
	}
	b.add("CPU_CORES", coreList(r.CoreIDs))
	if r.MemoryMB > 0 {
		b.add("MEMORY_LIMIT", strconv.FormatInt(r.MemoryMB, 10))
	}
	if r.MemoryMaxMB > 0 {
		b.add("MEMORY_MAX_LIMIT", strconv.FormatInt(r.MemoryMaxMB, 10))
	}
}

// addPorts names every port by its label and, where it belongs to one task, also
// by that task's name. A label that both the group and this task use is the
// task's: ports of the task come last and win.
func (b *base) addPorts(ports []spec.PortMapping) {
	for _, p := range ports {
		if p.Task == "" {
			b.addPort(p.Label, p)
		}
	}
	for _, p := range ports {
		if p.Task != "" {
			b.addPort(p.Task+"_"+p.Label, p)
		}
	}
	for _, p := range ports {
		if p.Task != "" && p.Task == b.cfg.Task {
			b.addPort(p.Label, p)
		}
	}
}

// addPort writes the three views of a port: the host's (HOST_, and IP and ADDR),
// the alloc's (ALLOC_), and PORT, the one to listen on. IPv6 addresses stand bare
// in IP and in brackets in ADDR.
func (b *base) addPort(label string, p spec.PortMapping) {
	host := strconv.Itoa(p.Value)
	inside := host
	if p.To > 0 {
		inside = strconv.Itoa(p.To)
	}
	allocIP := or(b.cfg.AllocIP, p.HostIP)
	b.addLabel("IP_", label, p.HostIP)
	b.addLabel("HOST_IP_", label, p.HostIP)
	b.addLabel("ADDR_", label, join(p.HostIP, host))
	b.addLabel("HOST_ADDR_", label, join(p.HostIP, host))
	b.addLabel("PORT_", label, inside)
	b.addLabel("HOST_PORT_", label, host)
	b.addLabel("ALLOC_PORT_", label, inside)
	b.addLabel("ALLOC_IP_", label, allocIP)
	b.addLabel("ALLOC_ADDR_", label, join(allocIP, inside))
}

func (b *base) addLabel(kind, label, value string) {
	b.add(kind+b.clean(kind, label), value)
}

// addMeta merges metadata, the later maps winning, and names each key twice: as
// written and in upper case. Where two keys meet in one name the one written so
// wins, then the smaller key.
func (b *base) addMeta(metas ...map[string]string) {
	merged := map[string]string{}
	for _, m := range metas {
		for k, v := range m {
			merged[k] = v
		}
	}
	keys := make([]string, 0, len(merged))
	for k := range merged {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	slices.Reverse(keys) // later pairs win
	const kind = "META_"
	put := func(written, key string) {
		b.meta = append(b.meta, pair{b.prefix + kind + b.clean(kind, written), merged[key]})
	}
	for _, k := range keys {
		put(strings.ToUpper(k), k)
	}
	exact := func(k string) bool { return cleanName(k) == k }
	for _, k := range keys {
		if !exact(k) {
			put(k, k)
		}
	}
	for _, k := range keys {
		if exact(k) {
			put(k, k)
		}
	}
}

// clean cleans a part of a generated name and remembers what it was.
func (b *base) clean(kind, s string) string {
	c := cleanName(s)
	if c != s {
		b.alias[b.prefix+kind+s] = b.prefix + kind + c
	}
	return c
}

func cleanName(s string) string {
	for i := range len(s) {
		if !wordByte(s[i]) {
			c := []byte(s)
			for ; i < len(c); i++ {
				if !wordByte(c[i]) {
					c[i] = '_'
				}
			}
			return string(c)
		}
	}
	return s
}

func wordByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_'
}

// coreList writes core ids the way cpusets do: "0-2,7,12-14".
func coreList(ids []int) string {
	if len(ids) == 0 {
		return ""
	}
	ids = slices.Clone(ids)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	var out []byte
	for i := 0; i < len(ids); {
		j := i
		for j+1 < len(ids) && ids[j+1] == ids[j]+1 {
			j++
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(out, int64(ids[i]), 10)
		if j > i {
			out = strconv.AppendInt(append(out, '-'), int64(ids[j]), 10)
		}
		i = j + 1
	}
	return string(out)
}

func join(ip, port string) string {
	switch {
	case ip == "":
		return ""
	case strings.Contains(ip, ":"):
		return "[" + ip + "]:" + port
	}
	return ip + ":" + port
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
