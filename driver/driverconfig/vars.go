// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverconfig

import (
	"strings"

	"github.com/zclconf/go-cty/cty"
)

// node is a part of a dotted name: a value, or what is below it, or both.
type node struct {
	value string
	below map[string]*node
}

// tree makes objects of flat names: "attr.cpu.arch" is arch of cpu of attr. Names
// come from many hands, so both "driver.x" and "driver.x.version" may be there: the
// longer wins, whatever the order, and "driver.x" is an object. Only names
// whose first part is in roots are looked at: a node has hundreds, a config uses
// a few.
func tree(vars map[string]string, roots map[string]bool) map[string]cty.Value {
	top := &node{}
	for name, value := range vars {
		root, _, _ := strings.Cut(name, ".")
		if !roots[root] {
			continue
		}
		n := top
		for part := range strings.SplitSeq(name, ".") {
			next := n.below[part]
			if next == nil {
				next = &node{}
				if n.below == nil {
					n.below = map[string]*node{}
				}
				n.below[part] = next
			}
			n = next
		}
		n.value = value
	}
	return top.objects()
}

func (n *node) objects() map[string]cty.Value {
	values := map[string]cty.Value{}
	for name, child := range n.below {
		if len(child.below) > 0 {
			values[name] = cty.ObjectVal(child.objects())
		} else {
			values[name] = cty.StringVal(child.value)
		}
	}
	return values
}
