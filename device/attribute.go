// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// Attribute is a typed fact about the devices of a group: exactly one of its values
// is set. A number may have a unit, of bytes (kB, KiB … EiB), bytes a second (the
// same with /s), frequency (MHz, GHz) or power (mW, W, kW, MW, GW).
type Attribute struct {
	Int   *int64   `json:"int,omitempty"`
	Float *float64 `json:"float,omitempty"`
	Text  *string  `json:"text,omitempty"`
	Bool  *bool    `json:"bool,omitempty"`
	Unit  string   `json:"unit,omitempty"`
}

// Int is a whole number; unit may be empty.
func Int(v int64, unit string) Attribute { return Attribute{Int: &v, Unit: unit} }

// Float is a number; unit may be empty.
func Float(v float64, unit string) Attribute { return Attribute{Float: &v, Unit: unit} }

// Text is a text.
func Text(v string) Attribute { return Attribute{Text: &v} }

// Bool is a truth.
func Bool(v bool) Attribute { return Attribute{Bool: &v} }

// unit is a name for so many of a base unit.
type unit struct {
	name string
	base string
	num  int64
	den  int64
}

// units are all there are, the longest names first, as they are looked for.
func units() []unit {
	list := []unit{
		{"MHz", "Hz", 1e6, 1}, {"GHz", "Hz", 1e9, 1},
		{"mW", "W", 1, 1000}, {"W", "W", 1, 1}, {"kW", "W", 1e3, 1}, {"MW", "W", 1e6, 1}, {"GW", "W", 1e9, 1},
	}
	add := func(name string, n int64) {
		list = append(list, unit{name, "B", n, 1}, unit{name + "/s", "B/s", n, 1})
	}
	binary, decimal := int64(1), int64(1)
	for _, c := range "KMGTPE" {
		binary, decimal = binary<<10, decimal*1000
		add(string(c)+"iB", binary)
		if c != 'E' {
			add(string(c)+"B", decimal)
		}
	}
	add("kB", 1000)
	slices.SortStableFunc(list, func(a, b unit) int { return cmp.Compare(len(b.name), len(a.name)) })
	return list
}

func unitOf(name string) (unit, bool) {
	if name == "" {
		return unit{"", "", 1, 1}, true
	}
	for _, u := range units() {
		if u.name == name {
			return u, true
		}
	}
	return unit{}, false
}

// ParseAttribute reads an attribute as a person writes it: "11 GiB", "1.5GHz",
// "true", "Tesla". What is nothing else is a text.
func ParseAttribute(s string) Attribute {
	s = strings.TrimSpace(s)
	for _, u := range units() {
		if number, ok := strings.CutSuffix(s, u.name); ok {
			if a, ok := parseNumber(strings.TrimSpace(number)); ok {
				a.Unit = u.name
				return a
			}
		}
	}
	if a, ok := parseNumber(s); ok {
		return a
	}
	switch s {
	case "true", "false":
		return Bool(s == "true")
	}
	return Text(s)
}

func parseNumber(s string) (Attribute, bool) {
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return Int(i, ""), true
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil && finite(f) && strings.ContainsAny(s, "0123456789") && !strings.ContainsAny(s, "xX_pP") {
		return Float(f, ""), true
	}
	return Attribute{}, false
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

// String is the attribute as ParseAttribute reads it.
func (a Attribute) String() string {
	switch {
	case a.Int != nil:
		return strconv.FormatInt(*a.Int, 10) + a.Unit
	case a.Float != nil:
		s := strconv.FormatFloat(*a.Float, 'f', -1, 64)
		if !strings.Contains(s, ".") {
			s += ".0"
		}
		return s + a.Unit
	case a.Text != nil:
		return *a.Text
	case a.Bool != nil:
		return strconv.FormatBool(*a.Bool)
	}
	return ""
}

// Validate says what is wrong with the attribute.
func (a Attribute) Validate() error {
	set := 0
	for _, is := range []bool{a.Int != nil, a.Float != nil, a.Text != nil, a.Bool != nil} {
		if is {
			set++
		}
	}
	_, known := unitOf(a.Unit)
	switch {
	case set != 1:
		return fmt.Errorf("has %d values, must have one", set)
	case a.Unit != "" && a.Int == nil && a.Float == nil:
		return fmt.Errorf("has the unit %.20q and is no number", a.Unit)
	case !known:
		return fmt.Errorf("has an unknown unit %.20q", a.Unit)
	case a.Float != nil && !finite(*a.Float):
		return errors.New("is no finite number")
	}
	return nil
}

// amount is a number in its base unit.
func (a Attribute) amount() (r *big.Rat, base string, ok bool) {
	u, known := unitOf(a.Unit)
	switch {
	case !known:
		return nil, "", false
	case a.Int != nil:
		r = new(big.Rat).SetInt64(*a.Int)
	case a.Float != nil && finite(*a.Float):
		r = new(big.Rat).SetFloat64(*a.Float)
	default:
		return nil, "", false
	}
	return r.Mul(r, big.NewRat(u.num, u.den)), u.base, true
}

// Compare returns -1, 0 or 1 as a is less than, equal to or greater than b, and
// whether the two can be compared at all: numbers with numbers of the same base
// unit (exactly, 1 GiB is 1024 MiB), texts with texts, truths with truths, of which
// false is less than true.
func (a Attribute) Compare(b Attribute) (int, bool) {
	x, xBase, xOK := a.amount()
	y, yBase, yOK := b.amount()
	switch {
	case xOK && yOK:
		return x.Cmp(y), xBase == yBase
	case a.Text != nil && b.Text != nil:
		return strings.Compare(*a.Text, *b.Text), true
	case a.Bool != nil && b.Bool != nil:
		n := map[bool]int{true: 1}
		return cmp.Compare(n[*a.Bool], n[*b.Bool]), true
	}
	return 0, false
}

const (
	maxGroups    = 1 << 10
	maxInstances = 1 << 16 // of all groups together
	maxText      = 4 << 10
	maxFaults    = 20 // told
)

// Validate lists what is wrong with a fingerprint; a faulty one is not used at all.
// It also bounds how much a plugin may tell.
func Validate(groups []Group) error {
	count := 0
	for i := range groups {
		count += len(groups[i].Instances)
	}
	if len(groups) > maxGroups || count > maxInstances {
		return fmt.Errorf("device: %d groups and %d instances, at most %d and %d", len(groups), count, maxGroups, maxInstances)
	}
	var errs []error
	bad := func(format string, args ...any) {
		if len(errs) < maxFaults {
			errs = append(errs, fmt.Errorf("device: "+format, args...))
		}
	}
	seen := map[string]bool{}
	for i := range groups {
		g := &groups[i]
		for field, text := range map[string]string{"vendor": g.Vendor, "type": g.Type, "name": g.Name} {
			if text == "" || len(text) > maxText {
				bad("group %d has a %s of %d bytes, must be 1 to %d", i, field, len(text), maxText)
			}
		}
		if seen[g.ID()] {
			bad("group %.200q is there twice", g.ID())
		}
		seen[g.ID()] = true
		ids := make(map[string]bool, len(g.Instances))
		for _, in := range g.Instances {
			if in.ID == "" || len(in.ID) > maxText || ids[in.ID] {
				bad("group %.200q has an instance %.200q, which is empty, too long or there twice", g.ID(), in.ID)
			}
			ids[in.ID] = true
		}
		for name, a := range g.Attributes {
			if err := a.Validate(); err != nil {
				bad("attribute %.200q of group %.200q %w", name, g.ID(), err)
			}
		}
	}
	return errors.Join(errs...)
}
