// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin/driverpb"
	"github.com/nodekeep/nodekeep/internal/pluginpb"
)

var isolations = []driver.FSIsolation{driver.FSNone, driver.FSChroot, driver.FSImage, driver.FSUnveil}

func capabilitiesTo(c driver.Capabilities) *driverpb.DriverCapabilities {
	out := &driverpb.DriverCapabilities{SendSignals: c.SendSignals, Exec: c.Exec, MustCreateNetwork: c.MustInitNetwork,
		DisableLogCollection: c.CollectsLogs, DynamicWorkloadUsers: c.DynamicUsers,
		FsIsolation: driverpb.DriverCapabilities_FSIsolation(max(0, slices.Index(isolations, c.FSIsolation)))}
	if c.NoMounts {
		out.MountConfigs = driverpb.DriverCapabilities_NO_MOUNTS
	}
	for _, m := range c.NetIsolation {
		if mode, ok := netModes[m]; ok {
			out.NetworkIsolationModes = append(out.NetworkIsolationModes, mode)
		}
	}
	return out
}

// capabilitiesFrom reads what a driver can do. What we do not know is nothing.
func capabilitiesFrom(c *driverpb.DriverCapabilities) driver.Capabilities {
	out := driver.Capabilities{SendSignals: c.GetSendSignals(), Exec: c.GetExec(), MustInitNetwork: c.GetMustCreateNetwork(),
		CollectsLogs: c.GetDisableLogCollection(), DynamicUsers: c.GetDynamicWorkloadUsers(), FSIsolation: driver.FSNone,
		NoMounts: c.GetMountConfigs() == driverpb.DriverCapabilities_NO_MOUNTS}
	if n := int(c.GetFsIsolation()); n > 0 && n < len(isolations) {
		out.FSIsolation = isolations[n]
	}
	out.RemountSecrets = out.FSIsolation == driver.FSChroot || out.FSIsolation == driver.FSImage
	for _, m := range c.GetNetworkIsolationModes() {
		if name := netMode(m); !slices.Contains(out.NetIsolation, name) {
			out.NetIsolation = append(out.NetIsolation, name)
		}
	}
	return out
}

var healths = map[driver.HealthState]driverpb.FingerprintResponse_HealthState{
	driver.Undetected: driverpb.FingerprintResponse_UNDETECTED,
	driver.Unhealthy:  driverpb.FingerprintResponse_UNHEALTHY,
	driver.Healthy:    driverpb.FingerprintResponse_HEALTHY,
}

func fingerprintTo(f driver.Fingerprint) *driverpb.FingerprintResponse {
	out := &driverpb.FingerprintResponse{Health: healths[f.Health], HealthDescription: valid(f.Description), Attributes: map[string]*pluginpb.Attribute{}}
	for k, v := range f.Attributes {
		out.Attributes[valid(k)] = &pluginpb.Attribute{Value: &pluginpb.Attribute_StringVal{StringVal: valid(v)}}
	}
	return out
}

// A node's attributes go to a scheduler: a driver must not drown the others.
const (
	maxAttributes = 1000
	maxText       = 4096
)

// fingerprintFrom reads a sample. Its numbers become texts with their units.
func fingerprintFrom(f *driverpb.FingerprintResponse) driver.Fingerprint {
	out := driver.Fingerprint{Health: driver.Undetected, Description: short(f.GetHealthDescription()), Attributes: map[string]string{}}
	for h, n := range healths {
		if n == f.GetHealth() {
			out.Health = h
		}
	}
	for k, a := range f.GetAttributes() {
		if len(out.Attributes) < maxAttributes && len(k) <= maxText && k != "" {
			out.Attributes[k] = short(attribute(a))
		}
	}
	if f.GetErr() != "" {
		out.Health, out.Description = driver.Unhealthy, short(f.GetErr())
	}
	return out
}

func attribute(a *pluginpb.Attribute) string {
	switch v := a.GetValue().(type) {
	case *pluginpb.Attribute_IntVal:
		return strconv.FormatInt(v.IntVal, 10) + a.GetUnit()
	case *pluginpb.Attribute_FloatVal:
		return strconv.FormatFloat(v.FloatVal, 'g', -1, 64) + a.GetUnit()
	case *pluginpb.Attribute_BoolVal:
		return strconv.FormatBool(v.BoolVal)
	case *pluginpb.Attribute_StringVal:
		return v.StringVal
	}
	return ""
}

func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func short(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	return valid(s)
}

var states = map[string]driverpb.TaskState{"running": driverpb.TaskState_RUNNING, "exited": driverpb.TaskState_EXITED}

// stampTo never returns nil; the year 1 is a time that is not known.
func stampTo(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t) }

func stampFrom(t *timestamppb.Timestamp) time.Time {
	if t == nil || !t.IsValid() || t.AsTime().Year() <= 1 {
		return time.Time{}
	}
	return t.AsTime()
}

func statusTo(s driver.TaskStatus, name string) *driverpb.InspectTaskResponse {
	st := &driverpb.TaskStatus{Id: s.ID, Name: name, State: states[s.State], StartedAt: stampTo(s.StartedAt),
		CompletedAt: stampTo(s.ExitedAt), Result: &driverpb.ExitResult{}}
	if s.Exit != nil {
		st.Result = exitTo(*s.Exit)
	}
	return &driverpb.InspectTaskResponse{Task: st, Driver: &driverpb.TaskDriverStatus{Attributes: s.Attrs}}
}

func statusFrom(r *driverpb.InspectTaskResponse) driver.TaskStatus {
	t := r.GetTask()
	s := driver.TaskStatus{ID: t.GetId(), State: "unknown", StartedAt: stampFrom(t.GetStartedAt()),
		ExitedAt: stampFrom(t.GetCompletedAt()), Attrs: r.GetDriver().GetAttributes()}
	for name, n := range states {
		if n == t.GetState() {
			s.State = name
		}
	}
	if s.State == "exited" {
		res := exitFrom(t.GetResult(), "")
		s.Exit = &res
	}
	return s
}

// The names of what was measured, in both languages.
var (
	cpuFields = map[string]driverpb.CPUUsage_Fields{
		"system_percent": driverpb.CPUUsage_SYSTEM_MODE, "user_percent": driverpb.CPUUsage_USER_MODE, "ticks": driverpb.CPUUsage_TOTAL_TICKS,
		"throttled_periods": driverpb.CPUUsage_THROTTLED_PERIODS, "throttled_ns": driverpb.CPUUsage_THROTTLED_TIME, "percent": driverpb.CPUUsage_PERCENT,
	}
	memoryFields = map[string]driverpb.MemoryUsage_Fields{
		"rss": driverpb.MemoryUsage_RSS, "cache": driverpb.MemoryUsage_CACHE, "max": driverpb.MemoryUsage_MAX_USAGE,
		"kernel": driverpb.MemoryUsage_KERNEL_USAGE, "kernel_max": driverpb.MemoryUsage_KERNEL_MAX_USAGE,
		"usage": driverpb.MemoryUsage_USAGE, "swap": driverpb.MemoryUsage_SWAP,
	}
)

// usageTo sends both parts always: decoders elsewhere crash on one alone.
func usageTo(id string, u driver.Usage) *driverpb.TaskStatsResponse {
	cpu := &driverpb.CPUUsage{SystemMode: u.CPU.SystemPercent, UserMode: u.CPU.UserPercent, TotalTicks: u.CPU.Ticks, Percent: u.CPU.Percent,
		ThrottledPeriods: u.CPU.ThrottledPeriods, ThrottledTime: uint64(max(0, u.CPU.ThrottledTime))}
	for _, name := range u.CPU.Measured {
		if f, ok := cpuFields[name]; ok {
			cpu.MeasuredFields = append(cpu.MeasuredFields, f)
		}
	}
	m := u.Memory
	mem := &driverpb.MemoryUsage{Rss: m.RSS, Cache: m.Cache, MaxUsage: m.Max, KernelUsage: m.Kernel, KernelMaxUsage: m.KernelMax, Usage: m.Usage, Swap: m.Swap}
	for _, name := range m.Measured {
		if f, ok := memoryFields[name]; ok {
			mem.MeasuredFields = append(mem.MeasuredFields, f)
		}
	}
	return &driverpb.TaskStatsResponse{Stats: &driverpb.TaskStats{Id: id, Timestamp: stampTo(u.Time),
		AggResourceUsage: &driverpb.TaskResourceUsage{Cpu: cpu, Memory: mem}}}
}

// usageFrom reads a sample. Of the single processes only their number is kept.
func usageFrom(r *driverpb.TaskStatsResponse) driver.Usage {
	s := r.GetStats()
	c, m := s.GetAggResourceUsage().GetCpu(), s.GetAggResourceUsage().GetMemory()
	u := driver.Usage{Time: stampFrom(s.GetTimestamp()), Pids: len(s.GetResourceUsageByPid()),
		CPU: driver.CPUUsage{Percent: number(c.GetPercent()), UserPercent: number(c.GetUserMode()), SystemPercent: number(c.GetSystemMode()),
			Ticks: number(c.GetTotalTicks()), ThrottledPeriods: c.GetThrottledPeriods(), ThrottledTime: time.Duration(min(c.GetThrottledTime(), math.MaxInt64))},
		Memory: driver.MemoryUsage{RSS: m.GetRss(), Cache: m.GetCache(), Max: m.GetMaxUsage(), Kernel: m.GetKernelUsage(),
			KernelMax: m.GetKernelMaxUsage(), Usage: m.GetUsage(), Swap: m.GetSwap()}}
	for _, f := range c.GetMeasuredFields() {
		u.CPU.Measured = named(u.CPU.Measured, cpuFields, f)
	}
	for _, f := range m.GetMeasuredFields() {
		u.Memory.Measured = named(u.Memory.Measured, memoryFields, f)
	}
	return u
}

func named[F comparable](list []string, names map[string]F, f F) []string {
	for name, n := range names {
		if n == f && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

// number is 0 where a driver divided by it.
func number(f float64) float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return 0
	}
	return f
}

func eventTo(e driver.Event) *driverpb.DriverTaskEvent {
	out := &driverpb.DriverTaskEvent{TaskId: e.TaskID, AllocId: e.AllocID, TaskName: e.Task, Timestamp: stampTo(e.Time),
		Message: valid(e.Message), Annotations: map[string]string{}}
	for k, v := range e.Attrs {
		out.Annotations[valid(k)] = valid(v)
	}
	if e.Err != nil {
		out.Annotations["error"] = valid(e.Err.Error())
	}
	return out
}

func eventFrom(e *driverpb.DriverTaskEvent) driver.Event {
	out := driver.Event{TaskID: e.GetTaskId(), AllocID: e.GetAllocId(), Task: e.GetTaskName(), Time: stampFrom(e.GetTimestamp()), Message: short(e.GetMessage())}
	for k, v := range e.GetAnnotations() {
		if out.Attrs == nil {
			out.Attrs = map[string]string{}
		}
		if len(out.Attrs) < maxAttributes && len(k) <= maxText {
			out.Attrs[k] = short(v)
		}
	}
	return out
}
