// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/nodekeep/nodekeep/spec"
)

// build makes the job of a canonical tree.
func (p *parser) build(tree *Block) *Job {
	base := spec.Alloc{}
	p.where["job_id"] = place{"name", tree.name}
	p.fill(reflect.ValueOf(&base).Elem(), "", tree)
	job := &Job{ID: base.JobID, Name: base.JobName, Namespace: base.Namespace, Region: base.Region, Type: base.JobType, Meta: base.JobMeta, Tree: tree}
	if job.Name == "" {
		job.Name, base.JobName = job.ID, job.ID
	}
	job.Datacenters, _ = tree.Get("datacenters").([]string)
	if n, ok := tree.Get("priority").(int64); ok {
		job.Priority = int(n)
	}
	if len(job.Datacenters) > 0 && !strings.ContainsAny(job.Datacenters[0], "*?") {
		base.Datacenter = job.Datacenters[0]
	}
	seen := map[string]bool{}
	for i, g := range tree.All("group") {
		if seen[g.Label()] {
			p.diags.add(g.name.hcl(), "Duplicate group", "The group %q is there already; each has a name of its own.", g.Label())
		}
		seen[g.Label()] = true
		job.Groups = append(job.Groups, p.group(base.Clone(), tree, g, i))
	}
	if len(job.Groups) == 0 {
		p.diags.add(tree.Range.hcl(), "Job without a group", "The job %q has nothing to run; it needs a group block with a task.", job.ID)
	}
	return job
}

// maxCount keeps a slip of the finger from filling the memory.
const maxCount = 10_000

// group makes a group's alloc. What its tasks take over from it is the restart
// policy, argument by argument, and its consul block.
func (p *parser) group(a *spec.Alloc, job, g *Block, i int) Group {
	path := fmt.Sprintf("groups[%d].", i)
	p.mark(path, "group", g.Range)
	policy := spec.DefaultRestart(a.JobType)
	if r := g.First("restart"); r != nil {
		p.fill(reflect.ValueOf(&policy).Elem(), path+"restart.", r)
	}
	p.restart = policy
	p.fill(reflect.ValueOf(a).Elem(), path, g)
	p.health(a, path, job.First("update"), g.First("update"))
	if c := g.First("consul"); c != nil {
		for t := range a.Tasks {
			if a.Tasks[t].Attach.Consul == nil {
				a.Tasks[t].Attach.Consul = &spec.Consul{}
				p.fill(reflect.ValueOf(a.Tasks[t].Attach.Consul).Elem(), fmt.Sprintf("%stasks[%d].attach.consul.", path, t), c)
			}
		}
	}
	for t := range a.Tasks {
		if r := a.Tasks[t].Resources; r.Cores > 0 && r.CPU > 0 {
			at, _ := p.find(path, fmt.Sprintf("tasks[%d].resources.cores", t))
			p.diags.add(at.Range.hcl(), "Cores and cpu", "A task has whole cores or a share of cpu, not both.")
		}
	}
	group := Group{Name: g.Label(), Count: p.count(g), Alloc: a, Tree: g}
	if len(a.Tasks) == 0 && !gateway(g) {
		p.diags.add(g.Range.hcl(), "Group without a task", "The group %q has nothing to run; it needs a task block.", group.Name)
	}
	for _, t := range g.All("task") {
		if l := t.First("lifecycle"); l != nil && l.Get("hook") == nil {
			p.diags.add(l.Range.hcl(), "Missing hook", "A lifecycle block says when the task runs: hook = \"prestart\", \"poststart\" or \"poststop\".")
		}
	}
	return group
}

// count is how many allocs a group has: count, or where scaling begins.
func (p *parser) count(g *Block) int {
	n, ok := g.Get("count").(int64)
	if s := g.First("scaling"); s != nil && !ok {
		n, ok = s.Get("min").(int64)
	}
	switch {
	case !ok:
		return 1
	case n > maxCount:
		p.diags.add(g.attr("count").Range.hcl(), "Invalid value for count", "%d is out of range, %d or less is needed.", n, maxCount)
		return 1
	}
	return int(n)
}

// gateway says whether a scheduler adds a task to this group.
func gateway(g *Block) bool {
	for _, s := range g.All("service") {
		if c := s.First("connect"); c != nil && c.First("gateway") != nil {
			return true
		}
	}
	return false
}

// health is how an alloc of an updated group becomes healthy: the job's update
// block, the group's over it.
func (p *parser) health(a *spec.Alloc, path string, updates ...*Block) {
	for _, u := range updates {
		if u == nil || a.JobType.Batch() {
			continue
		}
		if a.Settings.Health == nil {
			a.Settings.Health = &spec.HealthPolicy{}
		}
		h := reflect.ValueOf(a.Settings.Health).Elem()
		for arg, field := range map[string]string{"health_check": "Check", "min_healthy_time": "MinHealthy", "healthy_deadline": "Deadline", "progress_deadline": "ProgressDeadline"} {
			if at := u.attr(arg); at != nil {
				f, tag, _ := structField(h, field)
				p.assignField(f, path+"settings.health."+tag, u.lang.child(arg), at)
			}
		}
	}
}

// mark remembers where a part of spec is written.
func (p *parser) mark(path, name string, r Range) {
	p.where[path] = place{name, r}
	p.where[strings.TrimSuffix(path, ".")] = place{name, r}
}

// fill copies what b says into a struct of spec, by the fields that the table
// names. path is where that struct is, as spec's validation has it.
func (p *parser) fill(to reflect.Value, path string, b *Block) {
	if b.lang.label != "" && len(b.Labels) > 0 {
		arg := b.lang.child(b.lang.label)
		if f, tag, ok := arg.place(to); ok {
			f.SetString(b.Labels[0])
			p.where[path+tag] = place{arg.name, b.name}
		}
	}
	for i := range b.Attrs {
		a := &b.Attrs[i]
		arg := b.lang.child(a.Name)
		if f, tag, ok := arg.place(to); ok {
			p.assignField(f, path+tag, arg, a)
			if a.origin != nil {
				if t, isTask := to.Addr().Interface().(*spec.Task); isTask {
					t.Origin = a.origin
				}
			}
		}
	}
	for name, r := range b.blank {
		if _, tag, ok := b.lang.child(name).place(to); ok {
			p.where[path+tag] = place{name, r}
		}
	}
	for _, x := range b.Blocks {
		if x.lang.field == "=" {
			p.fill(to, path, x)
			continue
		}
		if f, tag, ok := x.lang.place(to); ok {
			p.fillBlock(f, path+tag, x)
		}
	}
}

// place is n's field in a struct of spec, and its path as JSON has it: the one the
// table names, else that of its own name or its name in the API.
func (n *node) place(in reflect.Value) (f reflect.Value, tag string, ok bool) {
	if n.field != "" {
		return structField(in, n.field)
	}
	if f, tag, ok = structField(in, camel(n.name)); !ok {
		f, tag, ok = structField(in, n.json)
	}
	return f, tag, ok
}

// structField is the field of that path, such as Attach.Templates.
func structField(v reflect.Value, path string) (f reflect.Value, tag string, ok bool) {
	for part := range strings.SplitSeq(path, ".") {
		sf, found := v.Type().FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, part) })
		if !found {
			return v, "", false
		}
		name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		v, tag = v.FieldByIndex(sf.Index), join(tag, name)
	}
	return v, tag, true
}

func (p *parser) fillBlock(f reflect.Value, path string, b *Block) {
	switch f.Kind() {
	case reflect.Pointer:
		if f.IsNil() {
			f.Set(reflect.New(f.Type().Elem()))
			p.initial(f.Elem())
		}
		if r, ok := f.Interface().(*spec.RestartPolicy); ok && b.First("on_exit") != nil {
			r.OnExit = nil // a list is an argument too
		}
		p.mark(path+".", b.Type, b.Range)
		p.fill(f.Elem(), path+".", b)
	case reflect.Struct:
		p.mark(path+".", b.Type, b.Range)
		p.fill(f, path+".", b)
	case reflect.Slice:
		path = fmt.Sprintf("%s[%d].", path, f.Len())
		p.mark(path, b.Type, b.Range)
		e := reflect.New(f.Type().Elem()).Elem()
		if e.Kind() == reflect.Map {
			e.Set(reflect.ValueOf(plainData(b.Map())))
		} else {
			p.initial(e)
			p.fill(e, path, b)
		}
		f.Set(reflect.Append(f, e))
	case reflect.Map:
		if f.IsNil() && len(b.Labels)+len(b.Attrs)+len(b.Blocks) > 0 {
			f.Set(reflect.MakeMap(f.Type()))
		}
		p.fillMap(f, path, b)
	}
}

// fillMap fills a map: of blocks by label, or of what is in the block.
func (p *parser) fillMap(f reflect.Value, path string, b *Block) {
	elem := f.Type().Elem()
	if elem.Kind() == reflect.Struct {
		path = fmt.Sprintf("%s[%q].", path, b.Label())
		p.mark(path, b.Type, b.Range)
		e := reflect.New(elem).Elem()
		p.fill(e, path, b)
		f.SetMapIndex(reflect.ValueOf(b.Label()), e)
		return
	}
	p.mark(path, b.Type, b.Range)
	for k, v := range plainData(b.Map()) {
		switch elem.Kind() {
		case reflect.Interface:
			f.SetMapIndex(reflect.ValueOf(k), reflect.ValueOf(&v).Elem())
		case reflect.Int:
			n, _ := v.(float64)
			f.SetMapIndex(reflect.ValueOf(k), reflect.ValueOf(int(n)))
		case reflect.String:
			s, ok := v.(string)
			if list, isList := v.([]any); isList {
				words := make([]string, len(list))
				for i, w := range list {
					words[i] = fmt.Sprint(w)
				}
				s, ok = strings.Join(words, ","), true
			}
			if ok {
				f.SetMapIndex(reflect.ValueOf(k), reflect.ValueOf(s))
			}
		}
	}
}

// initial is what a block begins with that only changes some of it.
func (p *parser) initial(v reflect.Value) {
	switch v := v.Addr().Interface().(type) {
	case *spec.Task:
		v.Restart = new(p.restart)
	case *spec.LogConfig:
		*v = spec.DefaultLogs()
	}
}

// assignField sets a field to an argument's value.
func (p *parser) assignField(f reflect.Value, path string, arg *node, a *Attr) {
	p.where[path] = place{a.Name, a.Range}
	if f.Kind() == reflect.Pointer {
		f.Set(reflect.New(f.Type().Elem()))
		f = f.Elem()
	}
	if v := reflect.ValueOf(a.Value); (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.Len() == 0 && a.origin == nil {
		return // the same as none, and as JSON gives it back
	}
	switch v := a.Value.(type) {
	case string:
		if f.Kind() == reflect.String {
			f.SetString(v)
		}
	case bool:
		f.SetBool(v)
	case int64:
		f.SetInt(v * arg.unit)
	case time.Duration:
		if v == 0 {
			v = arg.zero
		}
		f.SetInt(int64(v))
	case []int64:
		list := make([]int, len(v))
		for i, n := range v {
			list[i] = int(n)
		}
		f.Set(reflect.ValueOf(list))
	case []string:
		f.Set(reflect.ValueOf(append([]string{}, v...)))
	case map[string]string:
		m := make(map[string]string, len(v))
		for k, s := range v {
			m[k] = s
		}
		f.Set(reflect.ValueOf(m))
	case map[string][]string:
		f.Set(reflect.ValueOf(v))
	case map[string]any:
		if f.Type() == reflect.TypeFor[json.RawMessage]() {
			// Of strings, numbers, booleans, lists and objects: it has no error.
			raw, _ := json.Marshal(v)
			f.SetBytes(raw)
			return
		}
		f.Set(reflect.ValueOf(plainData(v)))
	}
}

// plainData is m as encoding/json gives it back.
func plainData(m map[string]any) map[string]any {
	out := map[string]any{}
	raw, err := json.Marshal(m)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		return nil
	}
	return out
}
