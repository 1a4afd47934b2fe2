// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import "slices"

// Names are all names of the language.
func Names() []string {
	var all []string
	var walk func(n *node)
	walk = func(n *node) {
		for _, c := range n.inside {
			all = append(all, c.name)
			walk(c)
		}
	}
	walk(language())
	slices.Sort(all)
	return slices.Compact(all)
}
