// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package usage

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodekeep/nodekeep/driver"
)

// The parsers read the kernel's texts. None fails: what makes no sense is as if
// it were not there.

// number is one number, as in memory.current; "max" and texts are none.
func number(s string) (uint64, bool) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 64)
	return n, err == nil
}

// flat reads lines of "key value", as in cpu.stat and memory.stat.
func flat(text string) map[string]uint64 {
	m := map[string]uint64{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, ok := number(value); ok && key != "" {
			m[key] = n
		}
	}
	return m
}

// kilobytes reads lines of "Key:   123 kB", as in /proc/<pid>/status, in bytes.
func kilobytes(text string) map[string]uint64 {
	m := map[string]uint64{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, ":")
		value, kb := strings.CutSuffix(strings.TrimSpace(value), " kB")
		if n, isNumber := number(value); ok && kb && isNumber && n < math.MaxUint64>>10 {
			m[key] = n << 10
		}
	}
	return m
}

// colons reads lines of "key: value", as in /proc/<pid>/io.
func colons(text string) map[string]uint64 {
	m := map[string]uint64{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok {
			if n, ok := number(value); ok {
				m[key] = n
			}
		}
	}
	return m
}

// stall reads a pressure file.
func stall(text string) *driver.Stall {
	var s driver.Stall
	found := false
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		var t *driver.StallTime
		switch f[0] {
		case "some":
			t = &s.Some
		case "full":
			t = &s.Full
		default:
			continue
		}
		for _, kv := range f[1:] {
			key, value, _ := strings.Cut(kv, "=")
			if key == "total" {
				if us, ok := number(value); ok {
					t.Total, found = micro(us), true
				}
				continue
			}
			p, err := strconv.ParseFloat(value, 64)
			if err != nil || math.IsNaN(p) || math.IsInf(p, 0) || p < 0 {
				continue
			}
			switch key {
			case "avg10":
				t.Avg10 = p
			case "avg60":
				t.Avg60 = p
			case "avg300":
				t.Avg300 = p
			}
		}
	}
	if !found {
		return nil
	}
	return &s
}

// ioStat reads v2's io.stat: the sums over all devices.
func ioStat(text string) (io driver.IOUsage) {
	for line := range strings.Lines(text) {
		for _, kv := range strings.Fields(line) {
			key, value, _ := strings.Cut(kv, "=")
			n, ok := number(value)
			if !ok {
				continue
			}
			switch key {
			case "rbytes":
				io.ReadBytes += n
			case "wbytes":
				io.WriteBytes += n
			case "rios":
				io.ReadOps += n
			case "wios":
				io.WriteOps += n
			}
		}
	}
	return io
}

// blkio reads lines of "8:0 Read 123" of v1: the sums over all devices.
func blkio(text string) (read, write uint64) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		n, ok := number(f[2])
		switch {
		case !ok:
		case f[1] == "Read":
			read += n
		case f[1] == "Write":
			write += n
		}
	}
	return read, write
}

// procTime is what /proc/<pid>/stat tells.
type procTime struct {
	user, system uint64 // of it and of its children that were waited for, clock ticks
	threads      int
}

func procStat(text string) (t procTime, ok bool) {
	i := strings.LastIndexByte(text, ')') // the name may hold anything
	f := strings.Fields(text[i+1:])
	if i < 0 || len(f) < 18 {
		return t, false
	}
	var v [5]uint64 // utime stime cutime cstime, then two others, num_threads
	for n, field := range []int{11, 12, 13, 14, 17} {
		if v[n], ok = number(f[field]); !ok || v[n] > math.MaxInt32<<20 {
			return t, false
		}
	}
	return procTime{user: v[0] + v[2], system: v[1] + v[3], threads: int(v[4])}, true
}

// micro and nano are bounded: a counter that makes no sense must not wrap.
func micro(us uint64) time.Duration {
	return time.Duration(min(us, math.MaxInt64/1000)) * time.Microsecond
}

func nano(ns uint64) time.Duration { return time.Duration(min(ns, math.MaxInt64)) }

// ticks are what the kernel counts processor time in, on every machine: 100 a second.
func ticks(n uint64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/uint64(10*time.Millisecond))) * 10 * time.Millisecond
}

// hierarchy is one mounted cgroup hierarchy.
type hierarchy struct {
	dir         string
	v2          bool
	controllers []string
}

// hierarchies reads /proc/self/mountinfo.
func hierarchies(mountinfo string) (l []hierarchy) {
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		m, f := strings.Fields(before), strings.Fields(after)
		if len(m) < 5 || len(f) < 3 {
			continue
		}
		h := hierarchy{dir: unescape(m[4]), v2: f[0] == "cgroup2"}
		if h.v2 || f[0] == "cgroup" {
			if !h.v2 {
				h.controllers = slices.DeleteFunc(strings.Split(f[2], ","), func(o string) bool {
					return o == "rw" || o == "ro" || strings.Contains(o, "=") // options of the mount
				})
			}
			l = append(l, h)
		}
	}
	return l
}

func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// places finds the directories that are the same cgroup in every hierarchy, by
// their path below the mount. exists says whether one is there.
func places(l []hierarchy, path string, exists func(string) bool) (v2 string, v1 map[string]string) {
	v1 = map[string]string{}
	rest, best := "", -1
	for _, h := range l {
		if r, ok := strings.CutPrefix(path, h.dir); ok && strings.HasPrefix(r, "/") && len(h.dir) > best {
			rest, best = r, len(h.dir)
		}
	}
	if best < 0 {
		return "", v1
	}
	for _, h := range l {
		if !exists(h.dir + rest) {
			continue
		}
		if h.v2 && v2 == "" {
			v2 = h.dir + rest
		}
		for _, c := range h.controllers {
			if v1[c] == "" {
				v1[c] = h.dir + rest
			}
		}
	}
	return v2, v1
}

// speed is the nominal speed of a core in MHz as /proc/cpuinfo tells it.
func speed(cpuinfo string) float64 {
	for line := range strings.Lines(cpuinfo) {
		key, value, ok := strings.Cut(line, ":")
		if !ok || strings.TrimSpace(key) != "cpu MHz" {
			continue
		}
		if f, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && f > 0 && f < 1e6 {
			return f
		}
	}
	return 0
}
