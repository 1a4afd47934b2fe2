// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// bar is what a figure should reach. A bar that is a time or a rate was set on a
// machine of a certain speed: of a slower one, measured by the rate at which it
// starts the same kind of program, that much less is expected.
type bar struct {
	value float64
	least bool // the figure must be at least value, not at most
	speed bool // it depends on the machine's speed
}

// bars by mode, figure by figure, in the order of modes: alloc, small, node.
var bars = map[string][3]bar{
	"starts":                        {{300, true, true}, {500, true, true}, {700, true, true}},
	"CPU per start":                 {{6, false, true}, {3.5, false, true}, {1.8, false, true}},
	"stop of all":                   {{150, false, true}, {150, false, true}, {60, false, true}},
	"commits per life in a burst":   {{1, false, false}, {1, false, false}, {1, false, false}},
	"churn of /bin/true":            {{240, true, true}, {450, true, true}, {1000, true, true}},
	"agent's own memory, no allocs": {{10, false, false}, {10, false, false}, {10, false, false}},
	// 8, and one for the hook whose state changes.
	"commits per life, alone":         {{9, false, false}, {9, false, false}, {9, false, false}},
	"helper processes per alloc":      {{1, false, false}, {1, false, false}, {0.01, false, false}},
	"helpers' memory per alloc (PSS)": {{2, false, false}, {0.8, false, false}, {0.25, false, false}},
	"agent's own memory":              {{80, false, false}, {80, false, false}, {80, false, false}},
	"idle context switches":           {{0, false, false}, {0, false, false}, {0, false, false}},
	"idle CPU":                        {{0, false, false}, {0, false, false}, {0, false, false}},
	"idle disk writes":                {{0, false, false}, {0, false, false}, {0, false, false}},
	"kill -9 to all reattached":       {{50, false, true}, {50, false, true}, {30, false, true}},
	"exit to status, p50":             {{3, false, true}, {3, false, true}, {3, false, true}},
}

// reference is the rate of starts of the program behind each mode on the machine
// the bars were set on, two workers, the middle of what was measured there.
var reference = map[string]float64{"alloc": 465, "small": 1185, "node": 2800, "exec": 465, "exec-small": 1185}

// logBars are shares of a bare copy in the same run.
var logBars = map[string]float64{"log of one task, 4096 B writes": 0.9, "log of one task, 128 B writes": 0.8}

// verdict says whether a figure reaches its bar; "" where there is none.
func verdict(f figure, limits map[string]float64) (want, met string) {
	mode, name, _ := strings.Cut(f.Name, ": ")
	if share, ok := logBars[name]; ok && f.Limit > 0 {
		return fmt.Sprintf(">= %.1f of limit", share), yes(f.Value >= share*f.Limit)
	}
	b, ok := barOf(mode, name)
	if !ok {
		return "", ""
	}
	reaches := func(value float64) bool { return b.least == (value > b.value) || value == b.value }
	sign := map[bool]string{true: ">= ", false: "<= "}[b.least]
	want = sign + strconv.FormatFloat(b.value, 'f', -1, 64)
	slower := reference[mode] / limits[mode]
	switch {
	case reaches(f.Value):
		return want, "yes"
	case !b.speed || limits[mode] == 0 || slower <= 1:
		return want, "no"
	case b.least && reaches(f.Value*slower), !b.least && reaches(f.Value/slower):
		return want, fmt.Sprintf("yes, for a machine %.1f times slower", slower)
	}
	return want, fmt.Sprintf("no, for a machine %.1f times slower too", slower)
}

func barOf(mode, name string) (bar, bool) {
	if i, ok := map[string]int{"exec": 0, "exec-small": 1}[mode]; ok {
		b, known := execBars[name]
		return b[i], known
	}
	i, ok := map[string]int{"alloc": 0, "small": 1, "node": 2}[mode]
	b, known := bars[name]
	return b[i], ok && known
}

func yes(ok bool) string {
	if ok {
		return "yes"
	}
	return "no"
}

// table prints the figures beside their limits and bars.
func table(out io.Writer, figures []figure) error {
	limits := map[string]float64{}
	for _, f := range figures {
		if mode, name, _ := strings.Cut(f.Name, ": "); name == "starts" {
			limits[mode] = f.Limit
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nfigure\tvalue\tunit\tlimit\tvalue/limit\tbar\tmet\tn")
	for _, f := range figures {
		lim, ratio := "", ""
		if f.Limit > 0 {
			lim, ratio = strconv.FormatFloat(f.Limit, 'f', 1, 64), strconv.FormatFloat(f.Value/f.Limit, 'f', 2, 64)
		}
		want, met := verdict(f, limits)
		fmt.Fprintf(w, "%s\t%.2f\t%s\t%s\t%s\t%s\t%s\t%d\n", f.Name, f.Value, f.Unit, lim, ratio, want, met, f.N)
	}
	return w.Flush()
}
