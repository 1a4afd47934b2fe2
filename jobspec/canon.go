// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"strconv"
	"strings"
	"time"
)

// canonical brings the tree of a job to one form, whatever spelling it was
// written in, so that nobody after it needs to know the old ones:
//
//	name = its label               nothing
//	task right in the job          a group of its own, of the same name
//	id = "x" in the job            its label
//	vault, secret around tasks     in every task that has none (of that name)
//	regexp = "x", version = …      operator = "regexp", value = "x"
//	distinct_hosts = true          operator = "distinct_hosts", value = "true"
//	logs { enabled = false }       disabled = true
//	scaling "vertical_cpu"         scaling "cpu"
func (p *parser) canonical(job *Block) {
	if id, ok := job.Get("id").(string); ok {
		job.Labels = []string{id}
		job.drop("id")
	}
	if job.Get("name") == job.Label() {
		job.drop("name")
	}
	var rest []*Block
	for _, x := range job.Blocks {
		if x.Type == "task" {
			p.old(x.Range, "A task stands in a group; this one gets a group of the same name.")
			group := job.lang.child("group")
			wrapped := *x
			wrapped.lang = group.child("task")
			x = &Block{Type: "group", Labels: x.Labels, Range: x.Range, name: x.name, lang: group, Blocks: []*Block{&wrapped}}
		}
		rest = append(rest, x)
	}
	job.Blocks = rest
	p.pushDown(job, job.All("group"))
	for _, g := range job.All("group") {
		p.pushDown(g, g.All("task"))
	}
	p.spellings(job)
	job.sort()
}

func (p *parser) old(r Range, format string, args ...any) {
	p.diags.warn(r.hcl(), "Old spelling", format, args...)
}

// pushDown moves vault and secret blocks to those that take them over.
func (p *parser) pushDown(from *Block, to []*Block) {
	var rest []*Block
	for _, x := range from.Blocks {
		if x.Type != "vault" && x.Type != "secret" {
			rest = append(rest, x)
			continue
		}
		for _, t := range to {
			has := false
			for _, y := range t.All(x.Type) {
				has = has || y.Label() == x.Label()
			}
			if !has {
				c := x.copy()
				relang(c, t.lang.child(x.Type))
				t.Blocks = append(t.Blocks, c)
			}
		}
	}
	from.Blocks = rest
}

// relang gives a tree that moved the lines of the table that it has there.
func relang(b *Block, n *node) {
	b.lang = n
	for _, x := range b.Blocks {
		relang(x, n.child(x.Type))
	}
}

// operators are the arguments of a constraint that are an operator and a value.
var operators = []string{"regexp", "version", "semver", "set_contains", "set_contains_any", "set_contains_all"}

func (p *parser) spellings(b *Block) {
	switch b.Type {
	case "constraint", "affinity":
		p.constraint(b)
	case "logs":
		if on, ok := b.Get("enabled").(bool); ok {
			r := b.attr("enabled").Range
			b.drop("enabled")
			if b.attr("disabled") == nil {
				b.set(Attr{Name: "disabled", Value: !on, Range: r})
			}
		}
	case "periodic":
		p.crons(b)
	case "scaling":
		p.resource(b)
	}
	for _, x := range b.Blocks {
		p.spellings(x)
	}
}

func (p *parser) constraint(b *Block) {
	sugar := func(a Attr, operator, to string, value string) {
		if b.attr("operator") != nil || b.attr(to) != nil {
			p.diags.add(a.Range.hcl(), "Two operators", "%s stands for an operator and its value; take the others out.", a.Name)
			return
		}
		b.drop(a.Name)
		b.set(Attr{Name: "operator", Value: operator, Range: a.Range})
		b.set(Attr{Name: to, Value: value, Range: a.Range})
	}
	for _, name := range operators {
		if a := b.attr(name); a != nil {
			sugar(*a, name, "value", a.Value.(string))
		}
	}
	if a := b.attr("distinct_hosts"); a != nil {
		sugar(*a, "distinct_hosts", "value", strconv.FormatBool(a.Value.(bool)))
	}
	if a := b.attr("distinct_property"); a != nil {
		// Its value, if there is one, is how many may share the property.
		property := *a
		b.drop("distinct_property")
		if b.attr("operator") != nil || b.attr("attribute") != nil {
			p.diags.add(property.Range.hcl(), "Two operators", "distinct_property stands for an operator and its attribute; take the others out.")
			return
		}
		b.set(Attr{Name: "operator", Value: "distinct_property", Range: property.Range})
		b.set(Attr{Name: "attribute", Value: property.Value, Range: property.Range})
	}
}

// resource is what a task's scaling block is about. The API has other words.
func (p *parser) resource(b *Block) {
	if len(b.Labels) == 0 {
		return // a group's
	}
	name := strings.TrimPrefix(b.Label(), vertical)
	if name != "cpu" && name != "mem" {
		p.diags.add(b.name.hcl(), "Unknown resource", "A task's scaling block is about one of cpu and mem, not %q.%s", name, meant(name, []string{"cpu", "mem"}))
	}
	b.Labels = []string{name}
}

// vertical is how the API's words for a task's scaling begin.
const vertical = "vertical_"

// crons checks what a schedule looks like; what it means is the scheduler's.
func (p *parser) crons(b *Block) {
	check := func(a *Attr, expr string) {
		n := len(strings.Fields(expr))
		if strings.HasPrefix(expr, "@") && n == 1 || n >= 5 && n <= 7 {
			return
		}
		p.diags.add(a.Range.hcl(), "Invalid value for "+a.Name, "%q has %d fields; a cron expression has 5, 6 (with years or seconds) or 7, or is one word such as @daily.", expr, n)
	}
	if a := b.attr("cron"); a != nil {
		check(a, a.Value.(string))
	}
	if a := b.attr("crons"); a != nil {
		for _, expr := range a.Value.([]string) {
			check(a, expr)
		}
	}
	if a := b.attr("time_zone"); a != nil {
		if _, err := time.LoadLocation(a.Value.(string)); err != nil {
			p.diags.warn(a.Range.hcl(), "Unknown time zone", "%q is not known on this machine; time zones are written as in \"Europe/Berlin\".", a.Value)
		}
	}
}
