// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin/driverpb"
	"github.com/nodekeep/nodekeep/internal/pluginpb"
	"github.com/nodekeep/nodekeep/internal/pluginwire"
)

// fill sets every field of a message, however deep, to something that is not zero
// and differs from its neighbours. Of a oneof the last kind stays.
func fill(m protoreflect.Message, n *int, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
			mp := m.Mutable(f).Map()
			v := mp.NewValue()
			if f.MapValue().Message() != nil {
				if depth > 6 {
					continue
				}
				fill(v.Message(), n, depth+1)
			} else {
				v = scalar(f.MapValue(), n)
			}
			mp.Set(protoreflect.ValueOfString(fmt.Sprintf("%d", 1000+*n)).MapKey(), v)
			*n++
		case f.IsList():
			l := m.Mutable(f).List()
			if f.Message() != nil {
				if depth > 6 {
					continue
				}
				fill(l.AppendMutable().Message(), n, depth+1)
				continue
			}
			l.Append(scalar(f, n))
		case f.Message() != nil:
			if depth <= 6 {
				fill(m.Mutable(f).Message(), n, depth+1)
			}
		default:
			m.Set(f, scalar(f, n))
		}
	}
}

func scalar(f protoreflect.FieldDescriptor, n *int) protoreflect.Value {
	*n++
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(fmt.Sprintf("text %d", *n))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(fmt.Sprintf("\xa6byte%02d", *n%100)))
	case protoreflect.EnumKind:
		values := f.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(values.Len() - 1).Number())
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(*n) + 0.5)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(*n))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(*n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(*n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(*n))
	}
	panic("a kind of field that the wire had not: " + f.Kind().String())
}

// zeroes lists the fields of a message, by full name, that are not set anywhere.
func zeroes(m protoreflect.Message, out map[string]bool, set map[string]bool) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name := string(f.FullName())
		if !m.Has(f) {
			out[name] = true
			continue
		}
		set[name] = true
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			m.Get(f).Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				zeroes(v.Message(), out, set)
				return true
			})
		case f.IsList() && f.Message() != nil:
			for j := range m.Get(f).List().Len() {
				zeroes(m.Get(f).List().Get(j).Message(), out, set)
			}
		case !f.IsMap() && !f.IsList() && f.Message() != nil:
			zeroes(m.Get(f).Message(), out, set)
		}
	}
}

const pkg = "hashicorp.nomad.plugins.drivers.proto."

// lost are the fields that our contract has no place for, and why. Everything else
// must survive the way into the contract and back.
var lost = map[string]string{
	"AllocatedTaskResources.networks":      "legacy; a task's ports are in Resources.ports",
	"LinuxResources.cpu_period":            "agents send 0: a driver derives it",
	"LinuxResources.cpu_quota":             "the same",
	"LinuxResources.oom_score_adj":         "the same: it is in the task's own configuration",
	"TaskStats.resource_usage_by_pid":      "only the number of processes is kept",
	"FingerprintResponse.err":              "an unhealthy sample, whose text it is",
	"InspectTaskResponse.network_override": "it is in the handle",
}

// lossy runs a message through the contract and reports which fields changed.
func compare(t *testing.T, want, got proto.Message) {
	t.Helper()
	diff(t, want.ProtoReflect(), got.ProtoReflect(), string(want.ProtoReflect().Descriptor().Name()))
}

func diff(t *testing.T, want, got protoreflect.Message, at string) {
	t.Helper()
	fields := want.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		short := strings.TrimPrefix(string(f.FullName()), pkg)
		if lost[short] != "" {
			continue
		}
		path := at + "." + string(f.Name())
		if !want.Has(f) || !got.Has(f) {
			if want.Has(f) != got.Has(f) {
				t.Errorf("%s: sent %v, came back %v", path, want.Get(f), got.Get(f))
			}
			continue
		}
		switch {
		case f.Message() != nil && !f.IsMap() && !f.IsList():
			diff(t, want.Get(f).Message(), got.Get(f).Message(), path)
		case f.IsList() && f.Message() != nil:
			a, b := want.Get(f).List(), got.Get(f).List()
			if a.Len() != b.Len() {
				t.Errorf("%s: sent %d, came back %d", path, a.Len(), b.Len())
				continue
			}
			for j := range a.Len() {
				diff(t, a.Get(j).Message(), b.Get(j).Message(), fmt.Sprintf("%s[%d]", path, j))
			}
		default:
			if !want.Get(f).Equal(got.Get(f)) {
				t.Errorf("%s: sent %v, came back %v", path, want.Get(f), got.Get(f))
			}
		}
	}
}

// filled is a message with every field set.
func filled[M proto.Message](m M) M {
	n := 0
	fill(m.ProtoReflect(), &n, 0)
	return m
}

// filledTask is a task with every field set, as agents fill it where fields depend
// on each other.
func filledTask() *driverpb.TaskConfig {
	m := filled(&driverpb.TaskConfig{})
	m.AllocDir, m.Nodekeep.TaskDir = "/root", "/root/"+m.Name
	r := m.Resources
	cpu := r.AllocatedResources.Cpu.CpuShares
	mem := r.AllocatedResources.Memory
	r.LinuxResources.CpuShares, r.LinuxResources.PercentTicks = cpu, float64(cpu)/1000
	r.LinuxResources.MemoryLimitBytes = max(mem.MemoryMb, mem.MemoryMaxMb) << 20
	r.LinuxResources.CpusetCpus = "1,2,5"
	r.LinuxResources.CpusetCgroup = m.Nodekeep.Cgroup
	return m
}

func filledStatus() *driverpb.InspectTaskResponse {
	m := filled(&driverpb.InspectTaskResponse{})
	m.Task.State = driverpb.TaskState_EXITED
	return m
}

func filledFingerprint() *driverpb.FingerprintResponse {
	m := filled(&driverpb.FingerprintResponse{})
	m.Attributes = map[string]*pluginpb.Attribute{"a": {Value: &pluginpb.Attribute_StringVal{StringVal: "text"}}}
	m.Err = ""
	return m
}

// trips are the ways of messages into our contract and back.
var trips = []struct {
	message func() proto.Message
	trip    func(t *testing.T, m proto.Message) proto.Message
}{
	{func() proto.Message { return filledTask() }, func(t *testing.T, m proto.Message) proto.Message {
		c, err := taskFrom(m.(*driverpb.TaskConfig), nil)
		require.NoError(t, err)
		back, err := taskTo(c, 1000)
		require.NoError(t, err)
		return back
	}},
	{func() proto.Message {
		m := filled(&driverpb.DriverCapabilities{})
		m.FsIsolation = driverpb.DriverCapabilities_UNVEIL
		return m
	}, func(_ *testing.T, m proto.Message) proto.Message {
		return capabilitiesTo(capabilitiesFrom(m.(*driverpb.DriverCapabilities)))
	}},
	{func() proto.Message { return filledFingerprint() }, func(_ *testing.T, m proto.Message) proto.Message {
		return fingerprintTo(fingerprintFrom(m.(*driverpb.FingerprintResponse)))
	}},
	{func() proto.Message { return filledStatus() }, func(_ *testing.T, m proto.Message) proto.Message {
		in := m.(*driverpb.InspectTaskResponse)
		return statusTo(statusFrom(in), in.Task.Name)
	}},
	{func() proto.Message { return filled(&driverpb.TaskStatsResponse{}) }, func(_ *testing.T, m proto.Message) proto.Message {
		in := m.(*driverpb.TaskStatsResponse)
		return usageTo(in.Stats.Id, usageFrom(in))
	}},
	{func() proto.Message { return filled(&driverpb.DriverTaskEvent{}) }, func(_ *testing.T, m proto.Message) proto.Message {
		return eventTo(eventFrom(m.(*driverpb.DriverTaskEvent)))
	}},
	{func() proto.Message { return filled(&driverpb.NetworkOverride{}) }, func(_ *testing.T, m proto.Message) proto.Message {
		return overrideTo(overrideFrom(m.(*driverpb.NetworkOverride)))
	}},
	{func() proto.Message { return filled(&driverpb.NetworkIsolationSpec{}) }, func(_ *testing.T, m proto.Message) proto.Message {
		return networkTo(networkFrom(m.(*driverpb.NetworkIsolationSpec)))
	}},
	{func() proto.Message { return filled(&driverpb.ExitResult{}) }, func(_ *testing.T, m proto.Message) proto.Message {
		return exitTo(exitFrom(m.(*driverpb.ExitResult), ""))
	}},
}

// plain are the messages whose fields are read and written one by one where they
// are used: the calls of live_test.go set each of them and see it arrive.
var plain = map[string][]string{
	"TaskConfigSchemaResponse": {"spec"}, "CapabilitiesResponse": {"capabilities"},
	"RecoverTaskRequest": {"task_id", "handle"}, "StartTaskRequest": {"task"},
	"StartTaskResponse": {"result", "driver_error_msg", "handle", "network_override"},
	"WaitTaskRequest":   {"task_id"}, "WaitTaskResponse": {"result", "err"},
	"StopTaskRequest": {"task_id", "timeout", "signal"}, "DestroyTaskRequest": {"task_id", "force"},
	"InspectTaskRequest": {"task_id"}, "TaskStatsRequest": {"task_id", "collection_interval"},
	"SignalTaskRequest": {"task_id", "signal"}, "ExecTaskRequest": {"task_id", "command", "timeout"},
	"ExecTaskResponse": {"stdout", "stderr", "result"}, "ExecTaskStreamingIOOperation": {"data", "close"},
	"ExecTaskStreamingRequest": {"setup", "tty_size", "stdin"}, "ExecTaskStreamingRequest.Setup": {"task_id", "command", "tty"},
	"ExecTaskStreamingRequest.TerminalSize": {"height", "width"}, "ExecTaskStreamingResponse": {"stdout", "stderr", "exited", "result"},
	"CreateNetworkRequest": {"alloc_id", "hostname"}, "CreateNetworkResponse": {"isolation_spec", "created"},
	"DestroyNetworkRequest": {"alloc_id", "isolation_spec"}, "TaskHandle": {"version", "config", "state", "driver_state"},
	// of the extension
	"DescribeResponse": {"idempotent_start", "remount_secrets", "prepare", "inspect", "stats", "events"},
	"PrepareRequest":   {"task"}, "PrepareEvent": {"event", "err"},
	"DestroyRequest": {"task_id", "force", "handle", "scope", "cgroup"},
}

// Whatever comes in goes out again, field by field; a field that is added to a
// message and forgotten in its conversion fails here.
func TestEveryField(t *testing.T) {
	covered := map[string]bool{}
	for _, tr := range trips {
		m := tr.message()
		name := string(m.ProtoReflect().Descriptor().Name())
		t.Run(name, func(t *testing.T) {
			unset, set := map[string]bool{}, map[string]bool{}
			zeroes(m.ProtoReflect(), unset, set)
			for f := range set {
				covered[f] = true
				delete(unset, f)
			}
			for f := range unset {
				if short := strings.TrimPrefix(f, pkg); lost[short] == "" && !strings.Contains(f, ".shared.structs.Attribute") {
					t.Errorf("%s is not tried", short)
				}
			}
			compare(t, m, tr.trip(t, proto.Clone(m)))
		})
	}
	files := []protoreflect.FileDescriptor{driverpb.File_driver_driverplugin_driverpb_driver_proto, driverpb.File_driver_driverplugin_driverpb_extension_proto}
	for _, file := range files {
		messages(file.Messages(), func(m protoreflect.MessageDescriptor) {
			name := strings.TrimPrefix(strings.TrimPrefix(string(m.FullName()), pkg), "nodekeep.plugin.v1.")
			for i := range m.Fields().Len() {
				f := m.Fields().Get(i)
				if !covered[string(f.FullName())] && !slices.Contains(plain[name], string(f.Name())) && lost[name+"."+string(f.Name())] == "" {
					t.Errorf("no test covers %s.%s", name, f.Name())
				}
			}
		})
	}
}

func messages(list protoreflect.MessageDescriptors, visit func(protoreflect.MessageDescriptor)) {
	for i := range list.Len() {
		if m := list.Get(i); !m.IsMapEntry() {
			visit(m)
			messages(m.Messages(), visit)
		}
	}
}

// What agents other than ours do not say is derived.
func TestForeignTask(t *testing.T) {
	m := filledTask()
	m.Nodekeep = nil
	m.AllocId = "a/b"
	c, err := taskFrom(m, nil)
	require.NoError(t, err)
	require.Equal(t, driver.Dirs{Alloc: "/root/alloc", Task: "/root/" + m.Name, Local: "/root/" + m.Name + "/local",
		Secrets: "/root/" + m.Name + "/secrets", Logs: "/root/alloc/logs"}, c.Dirs)
	require.Equal(t, "a_b", c.Scope)
	require.Equal(t, m.Resources.LinuxResources.CpusetCgroup, c.Cgroup)
	_, err = taskFrom(&driverpb.TaskConfig{}, nil)
	require.ErrorContains(t, err, "has no id")
	require.Equal(t, []int{0, 2, 3, 4, 9}, cores("0,2-4, 9,x,5-x,-1,7-99999999,"))
}

func TestExits(t *testing.T) {
	for _, c := range []struct {
		wire *driverpb.ExitResult
		err  string
		want driver.ExitResult
	}{
		{&driverpb.ExitResult{}, "", driver.ExitResult{}},
		{&driverpb.ExitResult{ExitCode: 3}, "", driver.ExitResult{Code: 3}},
		{&driverpb.ExitResult{Signal: 9}, "", driver.ExitResult{Code: 137, Signal: 9}},
		{&driverpb.ExitResult{ExitCode: 137, Signal: 9, OomKilled: true}, "", driver.ExitResult{Code: 137, Signal: 9, OOMKilled: true}},
		{&driverpb.ExitResult{}, "lost", driver.ExitResult{Code: -1, Err: "lost"}},
		{&driverpb.ExitResult{ExitCode: 4}, "lost", driver.ExitResult{Code: 4, Err: "lost"}},
		{nil, "lost", driver.ExitResult{Code: -1, Err: "lost"}},
		{nil, "", driver.ExitResult{Code: -1, Err: "the driver does not say how the task ended"}},
	} {
		require.Equal(t, c.want, exitFrom(c.wire, c.err))
	}
}

// What a foreign driver may send that none of ours does.
func TestForeignReports(t *testing.T) {
	fp := fingerprintFrom(&driverpb.FingerprintResponse{Health: 77, Attributes: map[string]*pluginpb.Attribute{
		"int": {Value: &pluginpb.Attribute_IntVal{IntVal: 5}, Unit: "MiB"}, "float": {Value: &pluginpb.Attribute_FloatVal{FloatVal: 1.5}, Unit: "GHz"},
		"bool": {Value: &pluginpb.Attribute_BoolVal{BoolVal: true}}, "none": {}, "long": {Value: &pluginpb.Attribute_StringVal{StringVal: strings.Repeat("x", 1<<20)}},
	}})
	require.Equal(t, driver.Undetected, fp.Health)
	require.Equal(t, "5MiB", fp.Attributes["int"])
	require.Equal(t, "1.5GHz", fp.Attributes["float"])
	require.Equal(t, "true", fp.Attributes["bool"])
	require.Less(t, len(fp.Attributes["long"]), 5000)
	many := &driverpb.FingerprintResponse{Attributes: map[string]*pluginpb.Attribute{}}
	for i := range 5000 {
		many.Attributes[fmt.Sprint(i)] = &pluginpb.Attribute{}
	}
	require.Len(t, fingerprintFrom(many).Attributes, maxAttributes)
	fp = fingerprintFrom(&driverpb.FingerprintResponse{Health: driverpb.FingerprintResponse_HEALTHY, Err: "broken"})
	require.Equal(t, driver.Fingerprint{Health: driver.Unhealthy, Description: "broken", Attributes: map[string]string{}}, fp)

	require.Equal(t, driver.Usage{}, usageFrom(nil))
	nan := usageFrom(&driverpb.TaskStatsResponse{Stats: &driverpb.TaskStats{AggResourceUsage: &driverpb.TaskResourceUsage{
		Cpu: &driverpb.CPUUsage{TotalTicks: nan(), ThrottledTime: 1 << 63, MeasuredFields: []driverpb.CPUUsage_Fields{99, 5, 5}}}}})
	require.Zero(t, nan.CPU.Ticks)
	require.Positive(t, nan.CPU.ThrottledTime)
	require.Equal(t, []string{"percent"}, nan.CPU.Measured)
	require.Equal(t, "unknown", statusFrom(nil).State)
	require.Nil(t, overrideFrom(&driverpb.NetworkOverride{}), "a blank network is none")
	require.Equal(t, "host", networkFrom(&driverpb.NetworkIsolationSpec{Mode: 88}).Mode)
	require.Equal(t, driver.FSNone, capabilitiesFrom(&driverpb.DriverCapabilities{FsIsolation: 88}).FSIsolation)
	require.Equal(t, driver.Capabilities{FSIsolation: driver.FSNone}, capabilitiesFrom(nil))
}

func nan() float64 { z := 0.0; return z / z }

// FuzzMessages reads whatever a plugin or an agent may send; nothing may panic, and
// what was read can be written.
func FuzzMessages(f *testing.F) {
	for i, tr := range trips {
		b, err := proto.Marshal(tr.message())
		require.NoError(f, err)
		f.Add(byte(i), b)
	}
	f.Add(byte(200), []byte{0xff})
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		task := &driverpb.TaskConfig{}
		if proto.Unmarshal(b, task) == nil {
			for _, schema := range []*driver.Schema{nil, driver.Object(map[string]*driver.Schema{"a": driver.Attr("number", false)})} {
				if c, err := taskFrom(task, schema); err == nil {
					_, err = taskTo(c, int64(kind))
					require.NoError(t, err)
				}
			}
		}
		h := &driverpb.TaskHandle{}
		if proto.Unmarshal(b, h) == nil {
			_, _ = handleFrom(h)
		}
		_, _ = handleFrom(&driverpb.TaskHandle{DriverState: append([]byte(ourState), b...)})
		for _, tr := range trips {
			m := tr.message().ProtoReflect().New().Interface()
			if _, isTask := m.(*driverpb.TaskConfig); isTask || proto.Unmarshal(b, m) != nil {
				continue
			}
			if st, ok := m.(*driverpb.InspectTaskResponse); ok && st.Task == nil {
				st.Task = &driverpb.TaskStatus{}
			}
			if st, ok := m.(*driverpb.TaskStatsResponse); ok && st.Stats == nil {
				st.Stats = &driverpb.TaskStats{}
			}
			if _, err := proto.Marshal(tr.trip(t, m)); err != nil {
				require.ErrorContains(t, err, "UTF-8")
			}
		}
		s := &pluginpb.Spec{}
		if proto.Unmarshal(b, s) == nil {
			if schema, err := pluginwire.SchemaOf(s); err == nil {
				again, err := pluginwire.SchemaOf(pluginwire.SpecOf(schema))
				require.NoError(t, err)
				require.Equal(t, schema, again)
			}
		}
	})
}

// A uid that the agent gives out goes by the name that drivers of the wire know, and
// comes back as it was; a user of the job's own is not touched.
func TestDynamicUser(t *testing.T) {
	for user, wire := range map[string]string{"80001": "nomad-80001", "web": "web", "": "", "1000:1000": "1000:1000", "-1": "-1"} {
		require.Equal(t, wire, userTo(user))
		require.Equal(t, user, userFrom(wire))
	}
	require.Equal(t, "nomad-x", userFrom("nomad-x"))
	require.Equal(t, "nomad-", userFrom("nomad-"))
}
