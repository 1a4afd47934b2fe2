// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	mib       = 1 << 20
	cpuPeriod = 100_000 // microseconds
	maxMB     = 1 << 40 // what a number of MiB may be without wrapping round

	minShares, maxShares = 2, 262144
	minWeight, maxWeight = 1, 10000
)

// shares are the v1 and v2 values for a number of MHz, in bounds. Both grow with
// it; v2's default of 100 is v1's of 1024.
func shares(mhz int64) (v1, v2 uint64) {
	s := min(max(mhz, minShares), maxShares)
	return uint64(s), uint64(min(max(s*100/1024, minWeight), maxWeight))
}

// memoryMB is what a task may use at most; 0 is no limit.
func (b *builder) memoryMB() int64 {
	switch r := b.t.Res; {
	case r.MemoryMax < 0:
		return 0
	case r.MemoryMax > 0:
		return max(r.MemoryMax, r.MemoryMB)
	default:
		return r.MemoryMB
	}
}

// limits works out what is asked for and takes back what no controller is there for.
func (b *builder) limits() {
	l, r := &b.spec.Limits, b.t.Res
	for field, v := range map[string]int64{"resources.cpu": r.CPU, "resources.memory": r.MemoryMB, "config.pids_limit": b.c.PidsLimit} {
		if v < 0 || v > maxMB {
			b.bad(field, fmt.Sprint(v), "must not be below 0")
		}
	}
	if r.MemoryMax > maxMB {
		b.bad("resources.memory_max", fmt.Sprint(r.MemoryMax), "is too much")
	}
	if b.c.SwapMB < -1 || b.c.SwapMB > maxMB {
		b.bad("config.memory_swap_mb", fmt.Sprint(b.c.SwapMB), "must be -1 (no limit), 0 (none) or a number of MiB")
	}
	if r.CPU > 0 {
		l.CPUShares, l.CPUWeight = shares(r.CPU)
	}
	if l.Memory = b.memoryMB() * mib; r.MemoryMB > 0 && l.Memory != r.MemoryMB*mib {
		l.MemoryReserve = r.MemoryMB * mib
	}
	if l.Memory > 0 {
		if l.Swap = b.c.SwapMB * mib; b.c.SwapMB < 0 {
			l.Swap = -1
		}
	}
	if l.Pids = b.c.PidsLimit; l.Pids == 0 {
		l.Pids = b.n.PidsLimit
	}
	b.cores()
	b.hardLimit()
	b.inForce()
	b.applied.Limits = *l
}

func (b *builder) cores() {
	cores := slices.Clone(b.t.Res.Cores)
	slices.Sort(cores)
	var list []string
	for _, c := range slices.Compact(cores) {
		if c < 0 || c > 8191 {
			b.bad("resources.cores", strconv.Itoa(c), "there is no such core")
		}
		list = append(list, strconv.Itoa(c))
	}
	b.spec.Limits.Cpus = strings.Join(list, ",")
}

// hardLimit makes the share the most a task gets. One with cores of its own is
// limited by them.
func (b *builder) hardLimit() {
	l := &b.spec.Limits
	switch {
	case !b.c.HardCPU || l.Cpus != "":
	case b.n.CoreMHz <= 0:
		b.bad("config.cpu_hard_limit", "true", "the speed of this node's cores is not known")
	case b.t.Res.CPU <= 0:
		b.bad("config.cpu_hard_limit", "true", "needs a share: resources.cpu is 0")
	default:
		// The kernel takes no less than a millisecond.
		l.CPUQuota, l.CPUPeriod = max(min(b.t.Res.CPU, maxMB)*cpuPeriod/b.n.CoreMHz, 1000), cpuPeriod
	}
}

// inForce drops what cannot be set, and says so.
func (b *builder) inForce() {
	l, f := &b.spec.Limits, b.n.Features
	none := b.spec.Cgroup == ""
	lacks := func(controller, what string, asked bool) bool {
		if !asked || !none && f.has(controller) {
			return false
		}
		why := "no " + controller + " controller"
		if none {
			why = "no cgroup"
		}
		b.misses(what, why)
		return true
	}
	if lacks("cpu", "cpu share", l.CPUShares > 0) {
		l.CPUShares, l.CPUWeight = 0, 0
	}
	if lacks("cpu", "cpu hard limit", l.CPUQuota > 0) {
		l.CPUQuota, l.CPUPeriod = 0, 0
	}
	if lacks("cpuset", "cores", l.Cpus != "") {
		l.Cpus = ""
	}
	if lacks("memory", "memory limit", l.Memory+l.MemoryReserve > 0) {
		l.Memory, l.MemoryReserve, l.Swap = 0, 0, 0
	} else if l.Memory > 0 && l.Swap >= 0 && f.Swap != "" {
		b.misses("swap limit", f.Swap)
		l.Swap = -1
	}
	if lacks("pids", "pids limit", l.Pids > 0) {
		l.Pids = 0
	}
	if b.spec.Cgroup != "" && !f.has("devices") {
		b.misses("device rules", "no devices controller")
	}
}
