// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"cmp"
	"slices"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/nodekeep/nodekeep/spec"
)

// Range is where something stands in a file; lines and columns (in characters)
// begin at 1, the end is the column behind the last.
type Range struct {
	File      string `json:"file"`
	Line      int    `json:"line"`
	Column    int    `json:"column"`
	EndLine   int    `json:"end_line"`
	EndColumn int    `json:"end_column"`
}

func rangeOf(r hcl.Range) Range {
	return Range{r.Filename, r.Start.Line, r.Start.Column, r.End.Line, r.End.Column}
}

// Block is a block of a job file after evaluation: variables, locals, functions
// and dynamic blocks are gone, names and types have been checked, superseded
// spellings have become today's. A scheduler reads from it what nodekeep has no
// types for:
//
//	for _, c := range group.Tree.All("constraint") {
//		attribute, _ := c.Get("attribute").(string)
//
// Arguments and blocks stand in the order of the language's table, blocks of one
// name in the order of the file (but ports: fixed ones first; identities: the one
// without a name first; blocks that the API keeps by label: by label), so that equal jobs have equal trees.
type Block struct {
	Type   string   `json:"type"`
	Labels []string `json:"labels,omitempty"`
	Attrs  []Attr   `json:"attrs,omitempty"`
	Blocks []*Block `json:"blocks,omitempty"`
	Range  Range    `json:"range"` // of its head

	lang  *node
	name  Range            // of the label
	blank map[string]Range // arguments that are an empty text
}

// Attr is an argument. Value is one of
//
//	string                   numbers and booleans written for it are converted
//	bool, int64
//	time.Duration
//	[]string, []int64
//	map[string]string, map[string][]string
//	map[string]any and below what JSON has; numbers are json.Number
//
// The language decides which. Strings that may name what only the node knows hold
// ${name} for it and $${name} for the text ${name}; those of the last kind are
// HCL templates.
type Attr struct {
	Name  string `json:"name"`
	Value any    `json:"value"`
	Range Range  `json:"range"` // of the value

	origin map[string]spec.Origin // of a task's config
}

// All are the blocks of that type right inside, in their order.
func (b *Block) All(typ string) []*Block {
	var all []*Block
	for _, x := range b.Blocks {
		if x.Type == typ {
			all = append(all, x)
		}
	}
	return all
}

// First is the first block of that type right inside, nil if there is none.
func (b *Block) First(typ string) *Block {
	for _, x := range b.Blocks {
		if x.Type == typ {
			return x
		}
	}
	return nil
}

// Get is the value of an argument, nil if it is not there.
func (b *Block) Get(name string) any {
	if a := b.attr(name); a != nil {
		return a.Value
	}
	return nil
}

// Label is the block's label, "" if it has none.
func (b *Block) Label() string {
	if len(b.Labels) == 0 {
		return ""
	}
	return b.Labels[0]
}

// Map is the block as plain data for JSON: arguments by name, durations in
// nanoseconds, blocks that may be there several times as lists.
func (b *Block) Map() map[string]any {
	m := map[string]any{}
	if b.lang != nil && b.lang.label != "" && len(b.Labels) > 0 {
		m[b.lang.label] = b.Labels[0]
	}
	for _, a := range b.Attrs {
		m[a.Name] = plainValue(a.Value)
	}
	for _, x := range b.Blocks {
		if x.lang != nil && x.lang.kind == kindBlock {
			m[x.Type] = x.Map()
			continue
		}
		list, _ := m[x.Type].([]any)
		m[x.Type] = append(list, x.Map())
	}
	return m
}

// plainValue is v as encoding/json would give it back, but for numbers.
func plainValue(v any) any {
	switch v := v.(type) {
	case time.Duration:
		return int64(v)
	case []string:
		return anys(v)
	case []int64:
		return anys(v)
	case map[string]string:
		m := map[string]any{}
		for k, s := range v {
			m[k] = s
		}
		return m
	case map[string][]string:
		m := map[string]any{}
		for k, s := range v {
			m[k] = anys(s)
		}
		return m
	}
	return v
}

func anys[T any](list []T) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = v
	}
	return out
}

func (b *Block) attr(name string) *Attr {
	for i := range b.Attrs {
		if b.Attrs[i].Name == name {
			return &b.Attrs[i]
		}
	}
	return nil
}

// set puts an argument in or replaces it.
func (b *Block) set(a Attr) {
	if old := b.attr(a.Name); old != nil {
		*old = a
		return
	}
	b.Attrs = append(b.Attrs, a)
}

func (b *Block) drop(name string) {
	b.Attrs = slices.DeleteFunc(b.Attrs, func(a Attr) bool { return a.Name == name })
}

// copy shares values, which nobody changes, and nothing else.
func (b *Block) copy() *Block {
	c := *b
	c.Labels, c.Attrs, c.Blocks = slices.Clone(b.Labels), slices.Clone(b.Attrs), nil
	for _, x := range b.Blocks {
		c.Blocks = append(c.Blocks, x.copy())
	}
	return &c
}

// sort brings a tree into the order that Block describes.
func (b *Block) sort() {
	if b.lang == nil {
		return
	}
	slices.SortStableFunc(b.Attrs, func(x, y Attr) int { return cmp.Compare(b.lang.order(x.Name), b.lang.order(y.Name)) })
	slices.SortStableFunc(b.Blocks, func(x, y *Block) int {
		if c := cmp.Compare(b.lang.order(x.Type), b.lang.order(y.Type)); c != 0 || x.lang == nil {
			return c
		}
		switch {
		case x.lang.keyed:
			return cmp.Compare(x.Label(), y.Label())
		case x.Type == "port":
			return cmp.Compare(dynamic(x), dynamic(y))
		case x.Type == "identity":
			return cmp.Compare(named(x), named(y))
		}
		return 0
	})
	for _, x := range b.Blocks {
		x.sort()
	}
}

// named is 1 for an identity that is not the task's own.
func named(identity *Block) int {
	if identity.Get("name") == nil {
		return 0
	}
	return 1
}

// dynamic is 1 for a port that the scheduler chooses.
func dynamic(port *Block) int {
	if port.Get("static") == nil {
		return 1
	}
	return 0
}

// hcl is r as the language's library has it, without byte positions.
func (r Range) hcl() hcl.Range {
	return hcl.Range{Filename: r.File, Start: hcl.Pos{Line: r.Line, Column: r.Column}, End: hcl.Pos{Line: r.EndLine, Column: r.EndColumn}}
}
