// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"fmt"
	"slices"
)

// Note names something in a job that nobody acts on.
type Note struct {
	Name  string `json:"name"`          // the block or the argument
	In    string `json:"in"`            // where: job "web", group "api", task "server"
	Count int    `json:"count"`         // how many blocks of that name are there
	By    Actor  `json:"by"`            // who would act on it
	Range Range  `json:"range"`         // the first of them
	Old   bool   `json:"old,omitempty"` // superseded
	Block bool   `json:"block"`         // a block, or an argument
}

// String is the note in one line.
func (n Note) String() string {
	what := n.Name
	if n.Count > 1 {
		what = fmt.Sprintf("%d × %s", n.Count, n.Name)
	}
	who := "needs the capability " + string(n.By)
	switch n.By {
	case ByScheduler:
		who = "is a scheduler's"
	case ByConnect:
		who = "is a service mesh's, a scheduler adds its tasks"
	}
	return fmt.Sprintf("%s in %s: %s", what, n.In, who)
}

// NotActedOn lists what a node does not act on, in the order of the tree: of
// blocks the outermost. Given are the capabilities that the node has; the file's,
// the node's and the driver's own are acted on always. What is listed is in Tree,
// for a host that knows what to do with it.
func (j *Job) NotActedOn(has ...Actor) []Note {
	w := notes{has: append([]Actor{ByFile, ByNode, ByDriver}, has...)}
	w.walk(j.Tree, fmt.Sprintf("job %q", j.ID))
	return w.list
}

type notes struct {
	has  []Actor
	list []Note
}

func (w *notes) walk(b *Block, in string) {
	for _, a := range b.Attrs {
		if by := b.lang.child(a.Name).by; !slices.Contains(w.has, by) {
			w.list = append(w.list, Note{Name: a.Name, In: in, Count: 1, By: by, Range: a.Range, Old: b.lang.child(a.Name).old})
		}
	}
	first := map[string]int{}
	for _, x := range b.Blocks {
		if slices.Contains(w.has, x.lang.by) {
			inside := in
			if l := x.Label(); l != "" {
				inside = fmt.Sprintf("%s, %s %q", in, x.Type, l)
			}
			w.walk(x, inside)
			continue
		}
		if i, again := first[x.Type]; again {
			w.list[i].Count++
			continue
		}
		first[x.Type] = len(w.list)
		w.list = append(w.list, Note{Name: x.Type, In: in, Count: 1, By: x.lang.by, Range: x.Range, Old: x.lang.old, Block: true})
	}
}
