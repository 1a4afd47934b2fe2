// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	_ "embed" // language.txt
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Actor says who acts on a block or an argument of a job file.
type Actor string

// The actors. Those from ByArtifact to ByVolume are capabilities that a node has
// if its host links the hook of that name.
const (
	ByFile      Actor = "file"      // this package, while it reads the file
	ByNode      Actor = "node"      // the runners of every node
	ByDriver    Actor = "driver"    // the task's driver
	ByScheduler Actor = "scheduler" // whoever places allocs; nodekeep carries it

	ByArtifact Actor = "artifact"
	ByTemplate Actor = "template"
	ByService  Actor = "service"
	ByConnect  Actor = "connect" // sidecars are tasks that a scheduler adds
	ByNetwork  Actor = "network"
	ByVolume   Actor = "volume"
	ByDevice   Actor = "device"
	ByVault    Actor = "vault"
	ByConsul   Actor = "consul"
	ByIdentity Actor = "identity"
	BySecret   Actor = "secret"
	ByAction   Actor = "action"
	BySchedule Actor = "schedule"
	ByPayload  Actor = "payload"
	ByHealth   Actor = "health"
)

// kind is the form of a value.
type kind string

const (
	kindPlain    kind = "plain"    // string, known when the file is read
	kindText     kind = "text"     // string, in the form of taskenv's texts
	kindRaw      kind = "raw"      // string, as written: nobody interpolates it
	kindBool     kind = "bool"     // bool
	kindInt      kind = "int"      // int64
	kindDuration kind = "duration" // time.Duration
	kindPlains   kind = "plains"   // []string of plain
	kindTexts    kind = "texts"    // []string of text
	kindInts     kind = "ints"     // []int64
	kindMap      kind = "map"      // map[string]string of text
	kindLists    kind = "lists"    // map[string][]string of text
	kindAny      kind = "any"      // what JSON can hold; strings are HCL templates

	kindBlock  kind = "block"
	kindBlocks kind = "blocks"
)

// blocky kinds are arguments that may also be written as a block.
func (k kind) blocky() bool { return k == kindMap || k == kindLists || k == kindAny }

// node is a line of language.txt: a block with what is inside, or an argument.
// It is never changed once the table is read.
type node struct {
	name  string
	kind  kind
	since string
	by    Actor
	json  string // "" if the API has no place for it
	keyed bool   // in JSON an object by label
	field string // in spec; "" has no place, "=" is the struct around it
	label string // the argument that the label stands for

	least, unit int64
	hasLeast    bool
	zero        time.Duration
	enum        []string
	old         bool
	was         string // a name that it had

	inside []*node
}

func (n *node) block() bool { return n.kind == kindBlock || n.kind == kindBlocks }

// child is the line of that name, nil if there is none.
func (n *node) child(name string) *node {
	for _, c := range n.inside {
		if c.name == name {
			return c
		}
	}
	return nil
}

// renamed is today's name of what was called name.
func (n *node) renamed(name string) string {
	for _, c := range n.inside {
		if c.was == name && name != "" {
			return c.name
		}
	}
	return ""
}

// names are what may stand inside, without what is superseded, sorted.
func (n *node) names() []string {
	var all []string
	for _, c := range n.inside {
		if !c.old && c.name != n.label {
			all = append(all, c.name)
		}
	}
	slices.Sort(all)
	return all
}

// order is where in the table a name stands: trees are brought into this order.
func (n *node) order(name string) int {
	return slices.IndexFunc(n.inside, func(c *node) bool { return c.name == name })
}

//go:embed language.txt
var languageText string

// language is the table, below a node without a name.
var language = sync.OnceValue(func() *node {
	root, err := readLanguage(languageText)
	if err != nil {
		panic(err) // the text is part of the program: a test reads it
	}
	return root
})

// readLanguage reads language.txt. What a "use" line brings is a copy, so that
// options of the line are its own.
func readLanguage(text string) (*node, error) {
	root := &node{by: ByNode, since: "1.0"}
	defs := map[string]*node{}
	open := []*node{root}
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || words[0][0] == '#' {
			continue
		}
		depth := (len(line) - len(strings.TrimLeft(line, " "))) / 2
		if depth >= len(open) {
			return nil, fmt.Errorf("jobspec: language.txt:%d: inside of nothing", i+1)
		}
		open = open[:depth+1]
		n, err := readLine(words, open[depth], defs)
		if err != nil {
			return nil, fmt.Errorf("jobspec: language.txt:%d: %w", i+1, err)
		}
		if words[0] != "def" {
			open[depth].inside = append(open[depth].inside, n)
		}
		open = append(open, n)
	}
	return root, nil
}

func readLine(words []string, around *node, defs map[string]*node) (*node, error) {
	n := &node{since: around.since, by: around.by, unit: 1}
	switch {
	case words[0] == "use" && defs[words[1]] != nil:
		*n = *defs[words[1]].under(around)
		words = words[2:]
	case words[0] == "use":
		return nil, fmt.Errorf("no def %q", words[1])
	default:
		def := words[0] == "def"
		if def {
			words = words[1:]
			n.by, n.since = "", ""
		}
		n.name, n.kind = words[0], kind(words[1])
		n.json = camel(n.name)
		words = words[2:]
		if def {
			defs[n.name] = n
		}
	}
	return n, n.options(words)
}

// under is a copy of a definition where it is used; what it leaves open is as
// around it.
func (n *node) under(around *node) *node {
	c := *n
	if c.by == "" {
		c.by = around.by
	}
	c.since = newer(c.since, around.since)
	c.inside = nil
	for _, x := range n.inside {
		c.inside = append(c.inside, x.under(&c))
	}
	return &c
}

func (n *node) options(words []string) (err error) {
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "since":
			n.since = value
		case "by":
			n.by = Actor(value)
		case "json":
			n.json, n.keyed = strings.CutPrefix(value, "keyed:")
		case "field":
			n.field = value
		case "label":
			n.label = strings.TrimPrefix(value, "-")
		case "min":
			n.hasLeast = true
			n.least, err = strconv.ParseInt(value, 10, 64)
		case "unit":
			n.unit, err = strconv.ParseInt(value, 10, 64)
		case "zero":
			n.zero, err = time.ParseDuration(value)
		case "enum":
			n.enum = strings.Split(value, "|")
		case "old":
			n.old = true
		case "was":
			n.was = value
		case "once":
			n.kind = kindBlock
		case "many":
			n.kind = kindBlocks
		default:
			return fmt.Errorf("unknown option %q", w)
		}
		if err != nil {
			return fmt.Errorf("option %q: %w", w, err)
		}
	}
	return nil
}

// own is the version of what only nodekeep has.
const own = "own"

// newer is the later of two versions; "" is the first of all, own the last.
func newer(a, b string) string {
	number := func(v string) int {
		if v == own {
			return math.MaxInt
		}
		major, minor, _ := strings.Cut(v, ".")
		x, _ := strconv.Atoi(major)
		y, _ := strconv.Atoi(minor)
		return 1000*x + y
	}
	if b != "" && (a == "" || number(b) > number(a)) {
		return b
	}
	return a
}

// camel is the API's spelling of a name: kill_timeout is KillTimeout.
func camel(name string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(name, "_") {
		if part != "" {
			b.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return b.String()
}

// Entry is a block of the language, as Language lists them.
type Entry struct {
	Block string // its name
	Since string // the version of Nomad that has it; "1.0" is that or earlier, "own" none: it is nodekeep's
	By    []Actor
	In    []string // the blocks it may stand in; "" is the file
}

// Language lists every block of job files, by name. By is who acts on it and on
// what it may hold, the block's own actor first.
func Language() []Entry {
	all := map[string]*Entry{}
	var walk func(n *node)
	walk = func(n *node) {
		for _, c := range n.inside {
			if !c.block() && !c.kind.blocky() || c.kind == kindAny && c.by == ByFile {
				continue
			}
			e := all[c.name]
			if e == nil {
				e = &Entry{Block: c.name, Since: c.since}
				all[c.name] = e
			}
			if newer(e.Since, c.since) == e.Since {
				e.Since = c.since
			}
			e.In = append(e.In, n.name)
			e.By = append(e.By, c.by)
			for _, x := range c.inside {
				if !x.block() {
					e.By = append(e.By, x.by)
				}
			}
			walk(c)
		}
	}
	walk(language())
	var list []Entry
	for _, name := range slices.Sorted(maps.Keys(all)) {
		e := all[name]
		slices.Sort(e.In)
		e.In, e.By = slices.Compact(e.In), unique(e.By)
		list = append(list, *e)
	}
	return list
}

// unique keeps the first of each.
func unique(list []Actor) []Actor {
	var out []Actor
	for _, a := range list {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}
