// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package devicemanager

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/spec"
)

var (
	// ErrNoDevice says that this node has no such device, or none that fits.
	ErrNoDevice = errors.New("devicemanager: no such device")
	// ErrBusy says that there are such devices, but not enough that are healthy and free.
	ErrBusy = errors.New("devicemanager: not enough devices are free")
	// ErrRequest says that a request makes no sense.
	ErrRequest = errors.New("devicemanager: faulty device request")
)

// maxSteps bounds the search for a way to satisfy all requests of a task at once.
const maxSteps = 10_000

// view is a group as requests see it.
type view struct {
	inst  *instance
	group *device.Group
	free  []string // healthy, and nobody's
}

// views are all groups in the order of their plugins; of two with one name the
// first counts. m.mu is held.
func (m *Manager) views() (out []view) {
	seen := map[string]bool{}
	for _, i := range m.insts {
		for n := range i.groups {
			g := &i.groups[n]
			if seen[g.ID()] {
				continue
			}
			seen[g.ID()] = true
			v := view{inst: i, group: g}
			for _, in := range g.Instances {
				if _, taken := m.taken[place{g.ID(), in.ID}]; in.Healthy && !taken {
					v.free = append(v.free, in.ID)
				}
			}
			slices.Sort(v.free)
			out = append(out, v)
		}
	}
	return out
}

// choice is what was chosen for one request.
type choice struct {
	group *device.Group
	ids   []string
}

// option is a group that a request could be satisfied from.
type option struct {
	view  int
	score float64
}

// options are those of a request, the one that suits its affinities best first.
func options(r *spec.DeviceRequest, views []view) (of []option, err error) {
	var misfits []string
	for n, v := range views {
		if !v.group.Is(r.Name) {
			continue
		}
		why, err := misfit(r, v.group)
		if err != nil {
			return nil, err
		}
		if why != "" {
			misfits = append(misfits, v.group.ID()+": "+why)
			continue
		}
		score, err := affinity(r, v.group)
		if err != nil {
			return nil, err
		}
		of = append(of, option{n, score})
	}
	switch {
	case len(of) == 0 && len(misfits) == 0:
		return nil, fmt.Errorf("%w: %q is asked for, and this node has %s", ErrNoDevice, r.Name, listed(views))
	case len(of) == 0:
		return nil, fmt.Errorf("%w: %q is asked for, but %s", ErrNoDevice, r.Name, strings.Join(misfits, "; "))
	}
	slices.SortStableFunc(of, func(a, b option) int { return cmp.Compare(b.score, a.score) })
	return of, nil
}

// plan finds devices for all requests. Of the ways there are it takes the one that
// suits the affinities of the first request best, then the second's, and so on.
// The error is ErrRequest, ErrNoDevice or ErrBusy.
func plan(requests []spec.DeviceRequest, views []view) ([]choice, error) {
	var of [][]option
	for n := range requests {
		o, err := options(&requests[n], views)
		if err != nil {
			return nil, err
		}
		of = append(of, o)
	}
	free := make([][]string, len(views))
	for n, v := range views {
		free[n] = v.free
	}
	steps, out := 0, make([]choice, len(requests))
	var choose func(n int) bool
	choose = func(n int) bool {
		if n == len(requests) {
			return true
		}
		for _, o := range of[n] {
			if steps++; steps > maxSteps {
				return false
			}
			before := free[o.view]
			ids, ok := pick(&requests[n], before)
			if !ok {
				continue
			}
			out[n] = choice{views[o.view].group, ids}
			free[o.view] = slices.DeleteFunc(slices.Clone(before), func(id string) bool { return slices.Contains(ids, id) })
			if choose(n + 1) {
				return true
			}
			free[o.view] = before
		}
		return false
	}
	if choose(0) {
		return out, nil
	}
	return nil, shortage(requests, views)
}

func listed(views []view) string {
	if len(views) == 0 {
		return "none"
	}
	var names []string
	for _, v := range views {
		names = append(names, v.group.ID())
	}
	return strings.Join(names, ", ")
}

// shortage says how many there are of what is asked for. More than there are at
// all, healthy or not, is ErrNoDevice.
func shortage(requests []spec.DeviceRequest, views []view) error {
	kind := ErrBusy
	var text []string
	for _, r := range requests {
		most, all, healthy, free := 0, 0, 0, 0
		for _, v := range views {
			if why, err := misfit(&r, v.group); !v.group.Is(r.Name) || why != "" || err != nil {
				continue
			}
			most, all, free = max(most, len(v.group.Instances)), all+len(v.group.Instances), free+len(v.free)
			for _, in := range v.group.Instances {
				if in.Healthy {
					healthy++
				}
			}
		}
		if r.Count > most {
			kind = ErrNoDevice
		}
		text = append(text, fmt.Sprintf("%d of %q asked for; this node has %d, of which %d are healthy and %d free", max(1, r.Count), r.Name, all, healthy, free))
	}
	return fmt.Errorf("%w: %s", kind, strings.Join(text, "; "))
}

// pick takes devices from the free ones of a group. Constraints and affinities on
// ${device.ids} say which are taken first, constraints also which at all.
func pick(r *spec.DeviceRequest, free []string) ([]string, bool) {
	count := max(1, r.Count)
	rank := map[string]int{}
	for _, c := range r.Affinities {
		if name(c.Attribute) == "device.ids" {
			for _, id := range fields(c.Value) {
				rank[id] += c.Weight
			}
		}
	}
	must := []string{}
	for _, c := range r.Constraints {
		if name(c.Attribute) != "device.ids" {
			continue
		}
		switch ids := fields(c.Value); c.Operator {
		case "set_contains", "set_contains_all":
			must = append(must, ids...)
		case "set_contains_any", "", "=", "==", "is":
			free = slices.DeleteFunc(slices.Clone(free), func(id string) bool { return !slices.Contains(ids, id) })
		case "!=", "not":
			free = slices.DeleteFunc(slices.Clone(free), func(id string) bool { return slices.Contains(ids, id) })
		}
	}
	for _, id := range must {
		rank[id] += 1 << 20
	}
	if len(free) < count {
		return nil, false
	}
	sorted := slices.Clone(free)
	slices.SortStableFunc(sorted, func(a, b string) int { return cmp.Compare(rank[b], rank[a]) })
	ids := sorted[:count:count]
	got := 0
	for _, id := range ids {
		if slices.Contains(must, id) {
			got++
		}
	}
	if got < min(count, len(must)) {
		return nil, false
	}
	slices.Sort(ids)
	return ids, true
}

// misfit says which constraint a group does not meet, "" if it meets all.
func misfit(r *spec.DeviceRequest, g *device.Group) (string, error) {
	for _, c := range r.Constraints {
		ok, err := meets(&c, g)
		if err != nil {
			return "", fmt.Errorf("%w: %q: %w", ErrRequest, r.Name, err)
		}
		if !ok {
			is := "not set"
			if a, set := resolve(c.Attribute, g); set {
				is = a.String()
			}
			return fmt.Sprintf("%s %s %s is not met: it is %s", c.Attribute, cmp.Or(c.Operator, "="), c.Value, is), nil
		}
	}
	return "", nil
}

// affinity is how well a group suits a request, from -1 to 1.
func affinity(r *spec.DeviceRequest, g *device.Group) (score float64, err error) {
	sum := 0
	for _, c := range r.Affinities {
		ok, err := meets(&c, g)
		if err != nil {
			return 0, fmt.Errorf("%w: affinity of %q: %w", ErrRequest, r.Name, err)
		}
		if ok {
			score += float64(c.Weight)
		}
		sum += max(c.Weight, -c.Weight)
	}
	return score / float64(max(1, sum)), nil
}

// name is that of an attribute without its brackets.
func name(attribute string) string {
	s := strings.TrimSpace(attribute)
	if in, ok := strings.CutPrefix(s, "${"); ok {
		s = strings.TrimSpace(strings.TrimSuffix(in, "}"))
	}
	return s
}

// resolve finds what an attribute of a constraint means for a group.
func resolve(attribute string, g *device.Group) (device.Attribute, bool) {
	n := name(attribute)
	switch n {
	case "device.vendor":
		return device.Text(g.Vendor), true
	case "device.type":
		return device.Text(g.Type), true
	case "device.model":
		return device.Text(g.Name), true
	case "device.ids":
		ids := make([]string, 0, len(g.Instances))
		for _, in := range g.Instances {
			ids = append(ids, in.ID)
		}
		slices.Sort(ids)
		return device.Text(strings.Join(ids, ",")), true
	}
	if key, ok := strings.CutPrefix(n, "device.attr."); ok {
		a, ok := g.Attributes[key]
		return a, ok
	}
	return device.Attribute{}, false
}

// fields splits a list that is written with commas.
func fields(s string) (out []string) {
	for f := range strings.SplitSeq(s, ",") {
		if f = strings.TrimSpace(f); f != "" {
			out = append(out, f)
		}
	}
	return out
}

// meets says whether a group meets a constraint. What is not set meets "!=" and
// is_not_set only.
func meets(c *spec.Constraint, g *device.Group) (bool, error) {
	a, set := resolve(c.Attribute, g)
	switch c.Operator {
	case "", "=", "==", "is":
		if name(c.Attribute) == "device.ids" {
			return set && overlap(fields(a.String()), fields(c.Value)) > 0, nil
		}
		return set && equal(a, c.Value), nil
	case "!=", "not":
		return !set || name(c.Attribute) == "device.ids" || !equal(a, c.Value), nil
	case "<", "<=", ">", ">=":
		n, ok := a.Compare(device.ParseAttribute(c.Value))
		if a.Text != nil {
			n, ok = strings.Compare(*a.Text, c.Value), true
		}
		return set && ok && ordered(c.Operator, n), nil
	case "set_contains", "set_contains_all":
		want := fields(c.Value)
		return set && overlap(fields(a.String()), want) == len(want), nil
	case "set_contains_any":
		return set && overlap(fields(a.String()), fields(c.Value)) > 0, nil
	case "regexp":
		re, err := regexp.Compile(c.Value)
		return set && err == nil && re.MatchString(a.String()), err
	case "version", "semver":
		fits, err := versionFits(a.String(), c.Value)
		return set && fits, err
	case "is_set":
		return set, nil
	case "is_not_set":
		return !set, nil
	}
	return false, fmt.Errorf("unknown operator %q: use =, !=, <, <=, >, >=, set_contains, set_contains_any, regexp, version, semver, is_set or is_not_set", c.Operator)
}

func overlap(have, want []string) (n int) {
	for _, w := range want {
		if slices.Contains(have, w) {
			n++
		}
	}
	return n
}

// equal compares as values, and a text as it is written.
func equal(a device.Attribute, value string) bool {
	n, ok := a.Compare(device.ParseAttribute(value))
	return ok && n == 0 || a.Text != nil && *a.Text == value
}

func ordered(operator string, n int) bool {
	switch operator {
	case "<":
		return n < 0
	case "<=":
		return n <= 0
	case ">":
		return n > 0
	}
	return n >= 0
}
