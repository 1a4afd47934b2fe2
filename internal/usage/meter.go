// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package usage

import (
	"os"
	"strconv"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/cgroup"
)

// Meter measures one task. It holds nothing open; it is not for several
// goroutines at once.
type Meter struct {
	v2    string            // directory; "" is none
	v1    map[string]string // directory of each controller
	procs func() []int
	mhz   float64

	last       time.Time // of the sample before
	user, syst time.Duration
	sums       [4]total // user, system, bytes read and written of processes
}

// total makes a sum that can shrink, because a process ended, one that cannot.
type total struct{ base, last uint64 }

func (t *total) at(sum uint64) uint64 {
	if sum < t.last {
		t.base += t.last - sum
	}
	t.last = sum
	return t.base + sum
}

// New makes the meter of a task by its cgroup or, where path is "", by what procs
// finds: the pids of all its processes.
func New(path string, procs func() []int) *Meter {
	m := &Meter{procs: procs, mhz: nominal()}
	if path != "" {
		m.v2, m.v1 = places(hierarchies(read("/proc/self/mountinfo")), path, func(dir string) bool {
			st, err := os.Stat(dir)
			return err == nil && st.IsDir()
		})
		m.procs = func() []int { return cgroup.Procs(path) }
	}
	return m
}

// nominal is the speed of a core in MHz, 0 where nothing tells it.
func nominal() float64 {
	const dir = "/sys/devices/system/cpu/cpu0/cpufreq/"
	for _, name := range []string{"base_frequency", "cpuinfo_max_freq"} {
		if khz, ok := number(read(dir + name)); ok && khz > 0 {
			return float64(khz) / 1000
		}
	}
	return speed(read("/proc/cpuinfo"))
}

func read(path string) string {
	b, _ := os.ReadFile(path)
	return string(b)
}

// Sample measures now. ok is false when the task has no process.
func (m *Meter) Sample(now time.Time) (u driver.Usage, ok bool) {
	var p sums
	for _, pid := range m.procs() {
		p.add("/proc/" + strconv.Itoa(pid))
	}
	if p.n == 0 {
		return u, false
	}
	u.Time, u.Pids, u.Threads = now, p.n, p.threads
	if n, ok := number(read(m.file("pids", "pids.current"))); ok {
		u.Threads = int(n)
	}
	m.cpu(&u.CPU, p)
	m.percent(&u.CPU, now)
	if !m.memoryV2(&u.Memory) && !m.memoryV1(&u.Memory) {
		p.memory(&u.Memory)
	}
	u.IO = m.io(p)
	if m.v2 != "" {
		s := driver.Pressure{CPU: stall(read(m.v2 + "/cpu.pressure")), Memory: stall(read(m.v2 + "/memory.pressure")), IO: stall(read(m.v2 + "/io.pressure"))}
		if s != (driver.Pressure{}) {
			u.Pressure = &s
		}
	}
	return u, true
}

// file is where a controller's file is: in v2 if it is there, else in v1.
func (m *Meter) file(controller, name string) string {
	if m.v2 != "" {
		if _, err := os.Stat(m.v2 + "/" + name); err == nil {
			return m.v2 + "/" + name
		}
	}
	if dir := m.v1[controller]; dir != "" {
		return dir + "/" + name
	}
	return ""
}

func (m *Meter) cpu(c *driver.CPUUsage, p sums) {
	c.Measured = []string{"user_ns", "system_ns", "percent", "user_percent", "system_percent"}
	v2 := flat(read(m.v2 + "/cpu.stat"))
	user, hasUser := v2["user_usec"]
	system, hasSystem := v2["system_usec"]
	acct := m.v1["cpuacct"]
	userNS, okUser := number(read(acct + "/cpuacct.usage_user"))
	systemNS, okSystem := number(read(acct + "/cpuacct.usage_sys"))
	switch {
	case m.v2 != "" && hasUser && hasSystem:
		c.User, c.System = micro(user), micro(system)
	case acct != "" && okUser && okSystem:
		c.User, c.System = nano(userNS), nano(systemNS)
	default:
		c.User, c.System = ticks(m.sums[0].at(p.user)), ticks(m.sums[1].at(p.system))
	}
	periods, ok := v2["nr_throttled"]
	throttled := micro(v2["throttled_usec"])
	if dir := m.v1["cpu"]; (m.v2 == "" || !ok) && dir != "" {
		v1 := flat(read(dir + "/cpu.stat"))
		periods, ok = v1["nr_throttled"]
		throttled = nano(v1["throttled_time"])
	}
	if ok {
		c.ThrottledPeriods, c.ThrottledTime = periods, throttled
		c.Measured = append(c.Measured, "throttled_periods", "throttled_ns")
	}
}

// percent compares with the sample before.
func (m *Meter) percent(c *driver.CPUUsage, now time.Time) {
	if took := now.Sub(m.last); !m.last.IsZero() && took > 0 {
		share := func(d time.Duration) float64 { return 100 * float64(max(0, d)) / float64(took) }
		c.UserPercent, c.SystemPercent = share(c.User-m.user), share(c.System-m.syst)
		c.Percent = c.UserPercent + c.SystemPercent
	}
	m.last, m.user, m.syst = now, c.User, c.System
	if m.mhz > 0 {
		c.Ticks = c.Percent / 100 * m.mhz
		c.Measured = append(c.Measured, "ticks")
	}
}

// field copies a value that is there and says so.
func field(mem *driver.MemoryUsage, name string, to *uint64, v uint64, ok bool) {
	if ok {
		*to = v
		mem.Measured = append(mem.Measured, name)
	}
}

func (m *Meter) memoryV2(mem *driver.MemoryUsage) bool {
	usage, ok := number(read(m.v2 + "/memory.current"))
	if m.v2 == "" || !ok {
		return false
	}
	stat := flat(read(m.v2 + "/memory.stat"))
	take := func(name string, to *uint64, key string) {
		v, ok := stat[key]
		field(mem, name, to, v, ok)
	}
	file := func(name string, to *uint64, key string) {
		v, ok := number(read(m.v2 + "/" + key))
		field(mem, name, to, v, ok)
	}
	field(mem, "usage", &mem.Usage, usage, true)
	take("rss", &mem.RSS, "anon")
	take("cache", &mem.Cache, "file")
	take("mapped_file", &mem.MappedFile, "file_mapped")
	take("kernel", &mem.Kernel, "kernel")
	file("swap", &mem.Swap, "memory.swap.current")
	file("max", &mem.Max, "memory.peak")
	return true
}

func (m *Meter) memoryV1(mem *driver.MemoryUsage) bool {
	dir := m.v1["memory"]
	usage, ok := number(read(dir + "/memory.usage_in_bytes"))
	if dir == "" || !ok {
		return false
	}
	stat := flat(read(dir + "/memory.stat"))
	take := func(name string, to *uint64) {
		key := name
		if _, ok := stat["total_"+name]; ok { // with what the task made below it
			key = "total_" + name
		}
		v, ok := stat[key]
		field(mem, name, to, v, ok)
	}
	file := func(name string, to *uint64, key string) {
		v, ok := number(read(dir + "/" + key))
		field(mem, name, to, v, ok)
	}
	field(mem, "usage", &mem.Usage, usage, true)
	take("rss", &mem.RSS)
	take("cache", &mem.Cache)
	take("swap", &mem.Swap)
	take("mapped_file", &mem.MappedFile)
	file("max", &mem.Max, "memory.max_usage_in_bytes")
	file("kernel", &mem.Kernel, "memory.kmem.usage_in_bytes")
	file("kernel_max", &mem.KernelMax, "memory.kmem.max_usage_in_bytes")
	return true
}

func (m *Meter) io(p sums) *driver.IOUsage {
	if m.v2 != "" {
		if text := read(m.v2 + "/io.stat"); text != "" {
			io := ioStat(text)
			return &io
		}
	}
	if dir := m.v1["blkio"]; dir != "" {
		bytes, ops := read(dir+"/blkio.throttle.io_service_bytes_recursive"), read(dir+"/blkio.throttle.io_serviced_recursive")
		if bytes == "" {
			bytes, ops = read(dir+"/blkio.throttle.io_service_bytes"), read(dir+"/blkio.throttle.io_serviced")
		}
		if bytes != "" {
			var io driver.IOUsage
			io.ReadBytes, io.WriteBytes = blkio(bytes)
			io.ReadOps, io.WriteOps = blkio(ops)
			return &io
		}
	}
	if !p.hasIO {
		return nil
	}
	return &driver.IOUsage{ReadBytes: m.sums[2].at(p.read), WriteBytes: m.sums[3].at(p.write)}
}

// sums are over all processes of a task.
type sums struct {
	procTime
	n           int // processes that were there to be asked
	mem         map[string]uint64
	read, write uint64
	hasIO       bool // some process told
}

func (s *sums) add(proc string) {
	t, ok := procStat(read(proc + "/stat"))
	if !ok { // gone
		return
	}
	s.n++
	s.user, s.system, s.threads = s.user+t.user, s.system+t.system, s.threads+t.threads
	if s.mem == nil {
		s.mem = map[string]uint64{}
	}
	for k, v := range kilobytes(read(proc + "/status")) {
		s.mem[k] += v
	}
	if io := colons(read(proc + "/io")); len(io) > 0 {
		s.hasIO = true
		s.read, s.write = s.read+io["read_bytes"], s.write+io["write_bytes"]
	}
}

// memory tells what processes know of it: nothing of the kernel's share and of
// files that are not mapped.
func (s *sums) memory(mem *driver.MemoryUsage) {
	take := func(name string, to *uint64, key string) {
		v, ok := s.mem[key]
		field(mem, name, to, v, ok)
	}
	take("usage", &mem.Usage, "VmRSS")
	take("rss", &mem.RSS, "RssAnon")
	take("mapped_file", &mem.MappedFile, "RssFile")
	take("swap", &mem.Swap, "VmSwap")
	take("max", &mem.Max, "VmHWM")
}
