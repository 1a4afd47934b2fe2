// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin/driverpb"
	"github.com/nodekeep/nodekeep/internal/pluginpb"
	"github.com/nodekeep/nodekeep/internal/pluginwire"
)

// taskTo is a task on the wire. total is the node's compute in MHz, of which the
// task's share is a part; 0 is not known.
func taskTo(c driver.TaskConfig, total int64) (*driverpb.TaskConfig, error) {
	config, err := pluginwire.Pack(c.Config)
	if err != nil {
		return nil, err
	}
	out := &driverpb.TaskConfig{
		Id: c.ID, Name: c.Name, MsgpackDriverConfig: config,
		Env: envTo(c.Env), DeviceEnv: envTo(c.DevEnv), Resources: resourcesTo(c, total), User: c.User,
		StdoutPath: c.Stdio.Stdout, StderrPath: c.Stdio.Stderr,
		TaskGroupName: c.Owner.Group, JobName: c.Owner.JobName, AllocId: c.Owner.AllocID, JobId: c.Owner.JobID,
		Namespace: c.Owner.Namespace, NodeName: c.Owner.NodeName, NodeId: c.Owner.NodeID, ParentJobId: c.Owner.ParentJobID,
		NetworkIsolationSpec: networkTo(c.Network),
		Nodekeep: &pluginpb.TaskExtra{Scope: c.Scope, Cgroup: c.Cgroup, Region: c.Owner.Region, Attempt: int64(c.Owner.Attempt),
			SharedDir: c.Dirs.Alloc, TaskDir: c.Dirs.Task, LocalDir: c.Dirs.Local, SecretsDir: c.Dirs.Secrets, LogDir: c.Dirs.Logs},
	}
	switch {
	case c.Dirs.Task != "":
		out.AllocDir = filepath.Dir(c.Dirs.Task)
	case c.Dirs.Alloc != "":
		out.AllocDir = filepath.Dir(c.Dirs.Alloc)
	}
	for _, m := range c.Mounts {
		out.Mounts = append(out.Mounts, &driverpb.Mount{TaskPath: m.Target, HostPath: m.Source, Readonly: m.ReadOnly,
			PropagationMode: m.Propagation, SelinuxLabel: m.SELinux, RequestName: m.Volume})
	}
	for _, d := range c.Devices {
		out.Devices = append(out.Devices, &driverpb.Device{TaskPath: d.TaskPath, HostPath: d.HostPath, CgroupPermissions: d.Permissions})
	}
	if c.DNS != nil {
		out.Dns = &driverpb.DNSConfig{Servers: c.DNS.Servers, Searches: c.DNS.Searches, Options: c.DNS.Options}
	}
	return out, nil
}

// dynamicUser comes before the uid of a user that no database knows.
const dynamicUser = "nomad-"

// userTo is how the wire names a uid for a driver that takes such.
func userTo(user string) string {
	if _, err := strconv.ParseUint(user, 10, 32); err == nil {
		return dynamicUser + user
	}
	return user
}

// userFrom is the uid that userTo named; any other user as it is.
func userFrom(user string) string {
	uid, ok := strings.CutPrefix(user, dynamicUser)
	if _, err := strconv.ParseUint(uid, 10, 32); ok && err == nil {
		return uid
	}
	return user
}

// resourcesTo says the same limits twice, as the scheduler and as the kernel sees
// them: drivers read the one or the other.
func resourcesTo(c driver.TaskConfig, total int64) *driverpb.Resources {
	r := c.Res
	linux := &driverpb.LinuxResources{CpuShares: r.CPU, MemoryLimitBytes: max(r.MemoryMB, r.MemoryMax) << 20, CpusetCgroup: c.Cgroup}
	if total > 0 {
		linux.PercentTicks = float64(r.CPU) / float64(total)
	}
	var cores []string
	for _, n := range r.Cores {
		cores = append(cores, strconv.Itoa(n))
	}
	linux.CpusetCpus = strings.Join(cores, ",")
	out := &driverpb.Resources{LinuxResources: linux, AllocatedResources: &driverpb.AllocatedTaskResources{
		Cpu:    &driverpb.AllocatedCpuResources{CpuShares: r.CPU},
		Memory: &driverpb.AllocatedMemoryResources{MemoryMb: r.MemoryMB, MemoryMaxMb: r.MemoryMax}}}
	for _, p := range c.Ports {
		out.Ports = append(out.Ports, &driverpb.PortMapping{Label: p.Label, Value: int32(p.Value), To: int32(p.To), HostIp: p.HostIP})
	}
	return out
}

// taskFrom reads a task. What agents other than ours leave out is derived as they
// lay it out.
func taskFrom(t *driverpb.TaskConfig, schema *driver.Schema) (driver.TaskConfig, error) {
	if t.GetId() == "" {
		return driver.TaskConfig{}, fmt.Errorf("driverplugin: the task's configuration has no id")
	}
	c := driver.TaskConfig{
		ID: t.GetId(), Name: t.GetName(), Env: envFrom(t.GetEnv()), DevEnv: envFrom(t.GetDeviceEnv()), User: userFrom(t.GetUser()),
		Owner: driver.Owner{AllocID: t.GetAllocId(), Task: t.GetName(), Group: t.GetTaskGroupName(), JobID: t.GetJobId(), JobName: t.GetJobName(),
			ParentJobID: t.GetParentJobId(), Namespace: t.GetNamespace(), NodeID: t.GetNodeId(), NodeName: t.GetNodeName()},
		Stdio:   driver.Stdio{Stdout: t.GetStdoutPath(), Stderr: t.GetStderrPath()},
		Network: networkFrom(t.GetNetworkIsolationSpec()),
		Cgroup:  t.GetResources().GetLinuxResources().GetCpusetCgroup(),
	}
	var err error
	if schema == nil {
		c.Config, err = pluginwire.Unpack(t.GetMsgpackDriverConfig())
	} else {
		c.Config, err = pluginwire.Decode(schema, t.GetMsgpackDriverConfig())
	}
	if err != nil {
		return c, err
	}
	if x := t.GetNodekeep(); x != nil {
		c.Scope, c.Cgroup, c.Owner.Region, c.Owner.Attempt = x.GetScope(), x.GetCgroup(), x.GetRegion(), int(x.GetAttempt())
		c.Dirs = driver.Dirs{Alloc: x.GetSharedDir(), Task: x.GetTaskDir(), Local: x.GetLocalDir(), Secrets: x.GetSecretsDir(), Logs: x.GetLogDir()}
	} else {
		c.Scope = safeName(t.GetAllocId())
		c.Dirs = dirsOf(t.GetAllocDir(), t.GetName())
	}
	resourcesFrom(&c, t.GetResources())
	for _, m := range t.GetMounts() {
		c.Mounts = append(c.Mounts, driver.Mount{Source: m.GetHostPath(), Target: m.GetTaskPath(), ReadOnly: m.GetReadonly(),
			Propagation: m.GetPropagationMode(), SELinux: m.GetSelinuxLabel(), Volume: m.GetRequestName()})
	}
	for _, d := range t.GetDevices() {
		c.Devices = append(c.Devices, driver.Device{HostPath: d.GetHostPath(), TaskPath: d.GetTaskPath(), Permissions: d.GetCgroupPermissions()})
	}
	if d := t.GetDns(); d != nil {
		c.DNS = &driver.DNS{Servers: d.GetServers(), Searches: d.GetSearches(), Options: d.GetOptions()}
	}
	return c, nil
}

func resourcesFrom(c *driver.TaskConfig, r *driverpb.Resources) {
	a := r.GetAllocatedResources()
	c.Res = driver.Resources{CPU: a.GetCpu().GetCpuShares(), MemoryMB: a.GetMemory().GetMemoryMb(), MemoryMax: a.GetMemory().GetMemoryMaxMb(),
		Cores: cores(r.GetLinuxResources().GetCpusetCpus())}
	for _, p := range r.GetPorts() {
		c.Ports = append(c.Ports, driver.Port{Label: p.GetLabel(), HostIP: p.GetHostIp(), Value: int(p.GetValue()), To: int(p.GetTo())})
	}
}

// cores reads the kernel's notation, "0,2-3". What is no core is left out.
func cores(s string) (out []int) {
	const most = 4096
	for part := range strings.SplitSeq(s, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		lo, err := strconv.Atoi(first)
		hi := lo
		if err == nil && isRange {
			hi, err = strconv.Atoi(last)
		}
		if err != nil || lo < 0 || hi >= most {
			continue
		}
		for n := lo; n <= hi; n++ {
			out = append(out, n)
		}
	}
	return out
}

// dirsOf are the directories of a task below an alloc's root.
func dirsOf(root, task string) driver.Dirs {
	if root == "" {
		return driver.Dirs{}
	}
	own := filepath.Join(root, task)
	return driver.Dirs{Alloc: filepath.Join(root, "alloc"), Task: own, Local: filepath.Join(own, "local"),
		Secrets: filepath.Join(own, "secrets"), Logs: filepath.Join(root, "alloc", "logs")}
}

// safeName makes an ID the name of a supervisor's scope.
func safeName(id string) string {
	return strings.Map(func(r rune) rune {
		if r == '/' || r == '\\' || r == 0 {
			return '_'
		}
		return r
	}, id)
}

func envTo(list []string) map[string]string {
	m := make(map[string]string, len(list))
	for _, kv := range list {
		if k, v, ok := strings.Cut(kv, "="); ok {
			m[strings.ToValidUTF8(k, "\uFFFD")] = strings.ToValidUTF8(v, "\uFFFD")
		}
	}
	return m
}

func envFrom(m map[string]string) (list []string) {
	for k, v := range m {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}

var netModes = map[string]driverpb.NetworkIsolationSpec_NetworkIsolationMode{
	"host": driverpb.NetworkIsolationSpec_HOST, "group": driverpb.NetworkIsolationSpec_GROUP,
	"task": driverpb.NetworkIsolationSpec_TASK, "none": driverpb.NetworkIsolationSpec_NONE,
}

func netMode(m driverpb.NetworkIsolationSpec_NetworkIsolationMode) string {
	for name, n := range netModes {
		if n == m {
			return name
		}
	}
	return "host"
}

func networkTo(n *driver.Network) *driverpb.NetworkIsolationSpec {
	if n == nil {
		return nil
	}
	out := &driverpb.NetworkIsolationSpec{Mode: netModes[n.Mode], Path: n.Path, Labels: n.Labels}
	if n.Hostname != "" || n.Address != "" {
		out.HostsConfig = &driverpb.HostsConfig{Hostname: n.Hostname, Address: n.Address}
	}
	return out
}

func networkFrom(n *driverpb.NetworkIsolationSpec) *driver.Network {
	if n == nil {
		return nil
	}
	return &driver.Network{Mode: netMode(n.GetMode()), Path: n.GetPath(), Labels: n.GetLabels(),
		Hostname: n.GetHostsConfig().GetHostname(), Address: n.GetHostsConfig().GetAddress()}
}

func overrideTo(n *driver.TaskNetwork) *driverpb.NetworkOverride {
	if n == nil {
		return nil
	}
	out := &driverpb.NetworkOverride{Addr: n.IP, AutoAdvertise: n.AutoAdvertise, PortMap: map[string]int32{}}
	for k, v := range n.PortMap {
		out.PortMap[k] = int32(v)
	}
	return out
}

// overrideFrom reads a task's address. One that says nothing is none, though some
// drivers send it.
func overrideFrom(n *driverpb.NetworkOverride) *driver.TaskNetwork {
	if n.GetAddr() == "" && len(n.GetPortMap()) == 0 && !n.GetAutoAdvertise() {
		return nil
	}
	out := &driver.TaskNetwork{IP: n.GetAddr(), AutoAdvertise: n.GetAutoAdvertise()}
	for k, v := range n.GetPortMap() {
		if out.PortMap == nil {
			out.PortMap = map[string]int{}
		}
		out.PortMap[k] = int(v)
	}
	return out
}

// ourState begins the driver_state of our own drivers.
const ourState = "nodekeep:1:"

// handleTo is a handle of our own driver on the wire: everything is in
// driver_state, which agents keep and send back as it is.
func handleTo(h *driver.Handle, task *driverpb.TaskConfig) (*driverpb.TaskHandle, error) {
	raw, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("driverplugin: handle: %w", err)
	}
	// Version 0 stands for something older elsewhere.
	return &driverpb.TaskHandle{Version: int32(max(1, min(h.Version, math.MaxInt32))), Config: task, State: driverpb.TaskState_RUNNING,
		DriverState: append([]byte(ourState), raw...)}, nil
}

// handleFrom reads what handleTo wrote.
func handleFrom(t *driverpb.TaskHandle) (*driver.Handle, error) {
	raw, ok := strings.CutPrefix(string(t.GetDriverState()), ourState)
	if !ok {
		return nil, fmt.Errorf("driverplugin: the handle of task %q is not of a driver like this one", t.GetConfig().GetId())
	}
	h := &driver.Handle{}
	if err := json.Unmarshal([]byte(raw), h); err != nil {
		return nil, fmt.Errorf("driverplugin: handle of task %q: %w", t.GetConfig().GetId(), err)
	}
	if id := t.GetConfig().GetId(); id != "" {
		h.TaskID = id
	}
	return h, nil
}

func exitTo(r driver.ExitResult) *driverpb.ExitResult {
	return &driverpb.ExitResult{ExitCode: int32(r.Code), Signal: int32(r.Signal), OomKilled: r.OOMKilled}
}

// exitFrom reads how a task ended. A death by signal is a code too; what went
// wrong is never a success.
func exitFrom(r *driverpb.ExitResult, err string) driver.ExitResult {
	out := driver.ExitResult{Code: int(r.GetExitCode()), Signal: int(r.GetSignal()), OOMKilled: r.GetOomKilled(), Err: strings.ToValidUTF8(err, "\uFFFD")}
	switch {
	case r == nil && err == "":
		out.Code, out.Err = -1, "the driver does not say how the task ended"
	case out.Code == 0 && out.Signal > 0:
		out.Code = 128 + out.Signal
	case out.Code == 0 && out.Err != "":
		out.Code = -1
	}
	return out
}
