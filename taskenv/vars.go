// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskenv

import (
	"slices"
	"strconv"
	"strings"

	"github.com/nodekeep/nodekeep/spec"
)

// generator collects what follows from the alloc and the node alone.
type generator struct {
	*base
	vars  []pair            // literal
	meta  []pair            // texts
	env   map[string]string // texts
	alias map[string]string // generated names before and after cleaning, where they differ
}

func (g *generator) generate() {
	a, n := g.cfg.Alloc, &g.cfg.Node
	g.vars = make([]pair, 0, 18+9*len(a.Ports))
	g.add("ALLOC_ID", a.ID)
	g.add("SHORT_ALLOC_ID", a.ID[:min(8, len(a.ID))])
	g.add("ALLOC_NAME", or(a.Name, spec.AllocName(a.JobID, a.Group, a.Index)))
	g.add("ALLOC_INDEX", strconv.Itoa(a.Index))
	g.add("GROUP_NAME", a.Group)
	g.add("JOB_ID", a.JobID)
	g.add("JOB_NAME", or(a.JobName, a.JobID))
	g.add("JOB_PARENT_ID", a.ParentJobID)
	g.add("NAMESPACE", a.Namespace)
	g.add("REGION", or(a.Region, n.Region))
	g.add("DC", or(a.Datacenter, n.Datacenter))
	g.add("PARENT_CGROUP", g.cfg.ParentCgroup)
	g.addPorts(a.Ports)
	metas := []map[string]string{a.JobMeta, a.Meta}
	if task := a.Task(g.cfg.Task); task != nil {
		g.add("TASK_NAME", task.Name)
		g.addResources(&task.Resources)
		g.env = task.Env
		metas = append(metas, task.Meta)
	}
	g.addMeta(metas)
}

// add appends a literal variable; an empty one is left out.
func (g *generator) add(name, value string) {
	if value != "" {
		g.vars = append(g.vars, pair{g.cfg.Prefix + name, value})
	}
}

func (g *generator) addResources(r *spec.Resources) {
	if r.CPU > 0 {
		g.add("CPU_LIMIT", strconv.FormatInt(r.CPU, 10))
	}
	g.add("CPU_CORES", coreList(r.CoreIDs))
	if r.MemoryMB > 0 {
		g.add("MEMORY_LIMIT", strconv.FormatInt(r.MemoryMB, 10))
	}
	if r.MemoryMaxMB > 0 {
		g.add("MEMORY_MAX_LIMIT", strconv.FormatInt(r.MemoryMaxMB, 10))
	}
}

// addPorts names every port by its label and, where it belongs to one task, also
// by that task's name. A label that both the group and this task use is the
// task's: ports of the task come last and win.
func (g *generator) addPorts(ports []spec.PortMapping) {
	for _, p := range ports {
		if p.Task == "" {
			g.addPort(p.Label, p)
		}
	}
	for _, p := range ports {
		if p.Task != "" {
			g.addPort(p.Task+"_"+p.Label, p)
		}
	}
	for _, p := range ports {
		if p.Task != "" && p.Task == g.cfg.Task {
			g.addPort(p.Label, p)
		}
	}
}

// addPort writes the three views of a port: the host's (HOST_, and IP and ADDR),
// the alloc's (ALLOC_), and PORT, the one to listen on. IPv6 addresses stand bare
// in IP and in brackets in ADDR.
func (g *generator) addPort(label string, p spec.PortMapping) {
	host := strconv.Itoa(p.Value)
	inside := host
	if p.To > 0 {
		inside = strconv.Itoa(p.To)
	}
	allocIP := or(g.cfg.AllocIP, p.HostIP)
	g.addLabel("IP_", label, p.HostIP)
	g.addLabel("HOST_IP_", label, p.HostIP)
	g.addLabel("ADDR_", label, join(p.HostIP, host))
	g.addLabel("HOST_ADDR_", label, join(p.HostIP, host))
	g.addLabel("PORT_", label, inside)
	g.addLabel("HOST_PORT_", label, host)
	g.addLabel("ALLOC_PORT_", label, inside)
	g.addLabel("ALLOC_IP_", label, allocIP)
	g.addLabel("ALLOC_ADDR_", label, join(allocIP, inside))
}

func (g *generator) addLabel(kind, label, value string) {
	g.add(kind+g.clean(kind, label), value)
}

// addMeta merges metadata, the later maps winning, and names each key twice: as
// written and in upper case. Where two keys meet in one name the one written so
// wins, then the smaller key.
func (g *generator) addMeta(metas []map[string]string) {
	var merged layer
	for _, m := range metas {
		merged = merged.under(fromMap(m))
	}
	const kind = "META_"
	var upper, cleaned, exact []pair
	for _, p := range slices.Backward(merged) { // later pairs win
		upper = append(upper, pair{g.clean(kind, strings.ToUpper(p.name)), p.value})
		if name := g.clean(kind, p.name); name == p.name {
			exact = append(exact, p)
		} else {
			cleaned = append(cleaned, pair{name, p.value})
		}
	}
	for _, p := range slices.Concat(upper, cleaned, exact) {
		g.meta = append(g.meta, pair{g.cfg.Prefix + kind + p.name, p.value})
	}
}

// clean cleans a part of a generated name and remembers what it was.
func (g *generator) clean(kind, s string) string {
	c := cleanName(s)
	if c != s {
		if g.alias == nil {
			g.alias = map[string]string{}
		}
		g.alias[g.cfg.Prefix+kind+s] = g.cfg.Prefix + kind + c
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
