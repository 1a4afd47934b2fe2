// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package usage

import (
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
)

const mountinfo = `22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:27 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
34 30 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
36 30 0:33 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
40 30 0:37 / /sys/fs/cgroup/unified\040tree rw - cgroup2 cgroup2 rw
cut off`

func TestPlaces(t *testing.T) {
	l := hierarchies(mountinfo)
	require.Len(t, l, 4)
	const rest = "/nodekeep.slice/agent/a.web.scope"
	there := func(dirs ...string) func(string) bool {
		return func(p string) bool { return slices.Contains(dirs, strings.TrimSuffix(p, rest)) }
	}
	v2, v1 := places(l, "/sys/fs/cgroup/unified tree"+rest, there("/sys/fs/cgroup/unified tree"))
	require.Equal(t, "/sys/fs/cgroup/unified tree"+rest, v2)
	require.Empty(t, v1)
	v2, v1 = places(l, "/sys/fs/cgroup/freezer"+rest, there("/sys/fs/cgroup/freezer", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu,cpuacct"))
	require.Empty(t, v2)
	require.Equal(t, map[string]string{
		"freezer": "/sys/fs/cgroup/freezer" + rest, "memory": "/sys/fs/cgroup/memory" + rest,
		"cpu": "/sys/fs/cgroup/cpu,cpuacct" + rest, "cpuacct": "/sys/fs/cgroup/cpu,cpuacct" + rest,
	}, v1)
	v2, v1 = places(l, "/elsewhere", there(""))
	require.Empty(t, v2)
	require.Empty(t, v1)
}

func TestParsers(t *testing.T) {
	require.Equal(t, map[string]uint64{"usage_usec": 12, "user_usec": 0}, flat("usage_usec 12\nuser_usec 0\nbad\nworse -1\nmax max\n"))
	require.Equal(t, map[string]uint64{"VmRSS": 4 << 10}, kilobytes("Name:\tx\nVmRSS:\t       4 kB\nThreads:\t1\nVmHWM:\t99999999999999999999 kB\n"))
	require.Equal(t, map[string]uint64{"read_bytes": 7}, colons("read_bytes: 7\nwrite_bytes: x\n"))
	require.Equal(t, driver.IOUsage{ReadBytes: 4, WriteBytes: 8, ReadOps: 3, WriteOps: 1},
		ioStat("8:0 rbytes=1 wbytes=8 rios=1 wios=1 dbytes=5\n8:16 rbytes=3 rios=2 wios=x\n"))
	r, w := blkio("8:0 Read 1\n8:0 Write 2\n8:16 Read 3\n8:0 Total 3\nTotal 6\n")
	require.Equal(t, []uint64{4, 2}, []uint64{r, w})
	require.Equal(t, &driver.Stall{Some: driver.StallTime{Avg10: 1.5, Avg60: 2, Avg300: 3, Total: 4 * time.Microsecond}},
		stall("some avg10=1.50 avg60=2.00 avg300=3.00 total=4\nfull avg10=NaN avg60=-1 total=0\n"))
	require.Nil(t, stall(""))
	require.Nil(t, stall("some avg10=1.50\n"))
	pt, ok := procStat("12 (a) b) S 1 12 12 0 -1 4194560 1 2 3 4 100 200 10 20 20 0 5 0 1 2 3\n")
	require.True(t, ok)
	require.Equal(t, procTime{user: 110, system: 220, threads: 5}, pt)
	_, ok = procStat("12 (a) S 1 2 3")
	require.False(t, ok)
	require.InDelta(t, 2445.4, speed("processor\t: 0\ncpu MHz\t\t: 2445.404\ncpu MHz : 9\n"), 0.1)
	require.Zero(t, speed("cpu MHz\t: many\n"))
	require.Equal(t, time.Duration(math.MaxInt64), nano(math.MaxUint64))
	require.Equal(t, 20*time.Millisecond, ticks(2))
}

// A sum over processes never goes backwards, whoever ends.
func TestTotal(t *testing.T) {
	var sum total
	for _, step := range [][2]uint64{{10, 10}, {15, 15}, {5, 15}, {6, 16}, {0, 16}, {1, 17}} {
		require.Equal(t, step[1], sum.at(step[0]))
	}
}

// dirOf makes a directory of control files.
func dirOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.WriteFile(dir+"/"+name, []byte(text), 0o600))
	}
	return dir
}

func self() []int { return []int{os.Getpid()} }

// The fields and where they come from, on the four kinds of hosts.
func TestSources(t *testing.T) {
	v2 := map[string]string{
		"cpu.stat":       "usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\nnr_periods 9\nnr_throttled 4\nthrottled_usec 5\n",
		"memory.current": "1000\n", "memory.peak": "2000\n", "memory.swap.current": "3\n",
		"memory.stat": "anon 400\nfile 500\nkernel 60\nfile_mapped 70\n",
		"io.stat":     "8:0 rbytes=1 wbytes=2 rios=3 wios=4\n", "pids.current": "11\n",
		"cpu.pressure": "some avg10=1.00 avg60=0 avg300=0 total=1\nfull avg10=0 avg60=0 avg300=0 total=0\n",
	}
	hybrid := map[string]string{"cpu.stat": "usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\n", "cpu.pressure": v2["cpu.pressure"]}
	v1 := map[string]string{
		"cpuacct.usage_user": "2000000000\n", "cpuacct.usage_sys": "1000000000\n", "cpu.stat": "nr_periods 9\nnr_throttled 4\nthrottled_time 5000\n",
		"memory.usage_in_bytes": "1000\n", "memory.max_usage_in_bytes": "2000\n", "memory.kmem.usage_in_bytes": "60\n", "memory.kmem.max_usage_in_bytes": "61\n",
		"memory.stat": "rss 1\ncache 500\nswap 3\nmapped_file 70\ntotal_rss 400\n", "pids.current": "11\n",
		"blkio.throttle.io_service_bytes": "8:0 Read 1\n8:0 Write 2\n", "blkio.throttle.io_serviced": "8:0 Read 3\n8:0 Write 4\n",
	}
	all := func(dir string) map[string]string {
		return map[string]string{"cpu": dir, "cpuacct": dir, "memory": dir, "pids": dir, "blkio": dir}
	}
	now := time.Unix(1, 0)
	cpu := driver.CPUUsage{User: 2 * time.Second, System: time.Second, ThrottledPeriods: 4, ThrottledTime: 5 * time.Microsecond}
	mem := driver.MemoryUsage{Usage: 1000, RSS: 400, Cache: 500, Swap: 3, MappedFile: 70, Max: 2000, Kernel: 60}
	io := &driver.IOUsage{ReadBytes: 1, WriteBytes: 2, ReadOps: 3, WriteOps: 4}
	sample := func(m *Meter) driver.Usage {
		u, ok := m.Sample(now)
		require.True(t, ok)
		require.Equal(t, 1, u.Pids)
		require.NotEmpty(t, u.Memory.Measured)
		require.NotEmpty(t, u.CPU.Measured)
		return u
	}
	plain := func(c driver.CPUUsage) driver.CPUUsage { c.Measured = nil; return c }
	bare := func(m driver.MemoryUsage) driver.MemoryUsage { m.Measured = nil; return m }

	u := sample(&Meter{v2: dirOf(t, v2), procs: self})
	require.Equal(t, cpu, plain(u.CPU))
	require.Equal(t, mem, bare(u.Memory))
	require.Equal(t, io, u.IO)
	require.Equal(t, 11, u.Threads)
	require.InDelta(t, 1, u.Pressure.CPU.Some.Avg10, 0)
	require.Nil(t, u.Pressure.Memory)

	u = sample(&Meter{v1: all(dirOf(t, v1)), procs: self})
	require.Equal(t, cpu, plain(u.CPU))
	mem.KernelMax = 61
	require.Equal(t, mem, bare(u.Memory))
	require.Equal(t, io, u.IO)
	require.Nil(t, u.Pressure)

	u = sample(&Meter{v2: dirOf(t, hybrid), procs: self})
	require.Equal(t, cpu.User, u.CPU.User)
	require.NotContains(t, u.CPU.Measured, "throttled_ns")
	require.Greater(t, u.Memory.RSS, uint64(1<<20), "of this process")
	require.GreaterOrEqual(t, u.Memory.Max, u.Memory.Usage)
	require.NotNil(t, u.Pressure)

	u = sample(&Meter{procs: self})
	require.Greater(t, u.CPU.User+u.CPU.System, time.Duration(-1))
	require.Greater(t, u.Memory.Usage, uint64(1<<20))
	require.Greater(t, u.Threads, 1)
	require.Nil(t, u.Pressure)

	_, ok := (&Meter{procs: func() []int { return nil }}).Sample(now)
	require.False(t, ok, "a task without processes")
}

// Percentages are over the time between two samples.
func TestPercent(t *testing.T) {
	m := &Meter{mhz: 2000}
	at := time.Unix(100, 0)
	step := func(user, system time.Duration) driver.CPUUsage {
		c := driver.CPUUsage{User: user, System: system}
		m.percent(&c, at)
		at = at.Add(time.Second)
		return c
	}
	require.Zero(t, step(time.Hour, time.Hour).Percent, "the first sample has nothing to compare with")
	c := step(time.Hour+500*time.Millisecond, time.Hour+time.Second)
	require.InDelta(t, 150, c.Percent, 1e-6)
	require.InDelta(t, 50, c.UserPercent, 1e-6)
	require.InDelta(t, 3000, c.Ticks, 1e-6)
	require.Zero(t, step(0, 0).Percent, "a counter that went back")
}

// FuzzParse: no text of the kernel's, or of whoever stands in for it, makes a
// parser fail or a number that is none.
func FuzzParse(f *testing.F) {
	for _, s := range []string{mountinfo, "some avg10=1.00 avg60=0 avg300=0 total=1\n", "8:0 rbytes=1 wbytes=2\n", "8:0 Read 1\n",
		"12 (a) b) S 1 12 12 0 -1 4194560 1 2 3 4 100 200 10 20 20 0 5 0 1 2 3\n", "VmRSS:\t 4 kB\n", "usage_usec 3\n", "cpu MHz : 3\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for k := range maps.Keys(flat(s)) {
			if strings.ContainsAny(k, " \n") {
				t.Errorf("key %q", k)
			}
		}
		kilobytes(s)
		colons(s)
		ioStat(s)
		blkio(s)
		if p, ok := procStat(s); ok && (ticks(p.user) < 0 || ticks(p.system) < 0 || p.threads < 0) {
			t.Errorf("%+v", p)
		}
		if p := stall(s); p != nil {
			for _, v := range []float64{p.Some.Avg10, p.Some.Avg60, p.Some.Avg300, p.Full.Avg10, p.Full.Avg60, p.Full.Avg300} {
				if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
					t.Errorf("%+v", p)
				}
			}
			if p.Some.Total < 0 || p.Full.Total < 0 {
				t.Errorf("%+v", p)
			}
		}
		if v := speed(s); v < 0 || math.IsNaN(v) {
			t.Error(v)
		}
		v2, v1 := places(hierarchies(s), s, func(string) bool { return true })
		if v2 == "" && len(v1) == 0 {
			return
		}
		if !strings.Contains(s, "/") {
			t.Errorf("%q %v", v2, v1)
		}
	})
}
