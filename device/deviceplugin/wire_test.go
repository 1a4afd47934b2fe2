// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package deviceplugin

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/device/deviceplugin/devicepb"
	"github.com/nodekeep/nodekeep/internal/pluginpb"
)

// fill sets every field of a message, however deep, to something that is not zero
// and differs from its neighbours. Of a oneof one kind is set, in turn. set gets
// the full names of the fields.
func fill(m protoreflect.Message, n *int, depth int, set map[string]bool) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if o := f.ContainingOneof(); o != nil && o.Fields().Get(*n%o.Fields().Len()) != f {
			continue
		}
		set[string(f.FullName())] = true
		switch {
		case f.IsMap():
			if depth > 5 {
				continue
			}
			mp := m.Mutable(f).Map()
			for range 2 {
				v := mp.NewValue()
				if f.MapValue().Message() != nil {
					fill(v.Message(), n, depth+1, set)
				} else {
					v = scalar(f.MapValue(), n)
				}
				*n++
				mp.Set(protoreflect.ValueOfString(fmt.Sprint("key ", *n)).MapKey(), v)
			}
		case f.IsList():
			l := m.Mutable(f).List()
			for range 2 {
				if f.Message() != nil {
					fill(l.AppendMutable().Message(), n, depth+1, set)
				} else {
					l.Append(scalar(f, n))
				}
			}
		case f.Message() != nil:
			fill(m.Mutable(f).Message(), n, depth+1, set)
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
		if f.Name() == "unit" {
			return protoreflect.ValueOfString("MHz")
		}
		return protoreflect.ValueOfString(fmt.Sprint("text ", *n))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(*n) + 0.5)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(*n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(*n))
	}
	panic("a kind of field that the wire had not: " + f.Kind().String())
}

// Every field of the wire survives the way into the contract and back.
func TestRoundTrip(t *testing.T) {
	set := map[string]bool{}
	for start := range 4 { // each kind of each oneof has its turn
		n := start
		stats, res, fp := &devicepb.StatsResponse{}, &devicepb.ReserveResponse{}, &devicepb.FingerprintResponse{}
		for _, m := range []proto.Message{stats, res, fp} {
			fill(m.ProtoReflect(), &n, 0, set)
		}
		same(t, stats, statsTo(statsFrom(stats), time.Now()))
		same(t, res, reservationTo(reservationFrom(res)))
		for _, g := range fp.DeviceGroup {
			for _, a := range g.Attributes {
				switch a.Value.(type) {
				case *pluginpb.Attribute_StringVal, *pluginpb.Attribute_BoolVal:
					a.Unit = "" // goes with numbers only
				}
			}
		}
		got := fingerprintFrom(fp)
		require.NoError(t, got.Err)
		same(t, fp, fingerprintTo(got.Groups))
	}
	for _, file := range []protoreflect.FileDescriptor{devicepb.File_device_deviceplugin_devicepb_device_proto, devicepb.File_device_deviceplugin_devicepb_stats_proto, pluginpb.File_internal_pluginpb_attribute_proto} {
		for i := range file.Messages().Len() {
			m := file.Messages().Get(i)
			for j := range m.Fields().Len() {
				name := string(m.Fields().Get(j).FullName())
				switch m.Name() {
				case "ReserveRequest", "StatsRequest": // see TestRequests
				default:
					require.True(t, set[name], "%s was not tried", name)
				}
			}
		}
	}
}

func same(t *testing.T, want, got proto.Message) {
	t.Helper()
	if !proto.Equal(want, got) {
		t.Errorf("sent     %v\ncame back %v", want, got)
	}
}

// The names and numbers that other implementations have.
func TestWireNames(t *testing.T) {
	s := devicepb.File_device_deviceplugin_devicepb_device_proto.Services().Get(0)
	require.Equal(t, "hashicorp.nomad.plugins.device.DevicePlugin", string(s.FullName()))
	var methods []string
	for i := range s.Methods().Len() {
		m := s.Methods().Get(i)
		methods = append(methods, fmt.Sprint(m.Name(), " ", m.IsStreamingClient(), " ", m.IsStreamingServer()))
	}
	require.Equal(t, []string{"Fingerprint false true", "Reserve false false", "Stats false true"}, methods)
	require.Equal(t, "hashicorp.nomad.plugins.shared.structs.StatValue", string((&devicepb.StatValue{}).ProtoReflect().Descriptor().FullName()))
	for m, want := range map[proto.Message]string{
		&devicepb.FingerprintResponse{}:  "1 device_group",
		&devicepb.DeviceGroup{}:          "1 vendor 2 device_type 3 device_name 4 devices 5 attributes",
		&devicepb.DetectedDevice{}:       "1 ID 2 healthy 3 health_description 4 hw_locality",
		&devicepb.DeviceLocality{}:       "1 pci_bus_id",
		&devicepb.ReserveRequest{}:       "1 device_ids",
		&devicepb.ReserveResponse{}:      "1 container_res",
		&devicepb.ContainerReservation{}: "1 envs 2 mounts 3 devices",
		&devicepb.Mount{}:                "1 task_path 2 host_path 3 read_only",
		&devicepb.DeviceSpec{}:           "1 task_path 2 host_path 3 permissions",
		&devicepb.StatsRequest{}:         "1 collection_interval",
		&devicepb.StatsResponse{}:        "1 groups",
		&devicepb.DeviceGroupStats{}:     "1 vendor 2 type 3 name 4 instance_stats",
		&devicepb.DeviceStats{}:          "1 summary 2 stats 3 timestamp",
		&devicepb.StatObject{}:           "1 nested 2 attributes",
		&devicepb.StatValue{}:            "1 float_numerator_val 2 float_denominator_val 3 int_numerator_val 4 int_denominator_val 5 string_val 6 bool_val 7 unit 8 desc",
	} {
		got := ""
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			got += fmt.Sprint(" ", fields.Get(i).Number(), " ", fields.Get(i).Name())
		}
		require.Equal(t, " "+want, got)
	}
}

// Whatever is missing or wrong in what comes from a plugin is never a crash.
func TestPoorMessages(t *testing.T) {
	require.Equal(t, device.Reservation{}, reservationFrom(nil))
	require.Equal(t, device.Reservation{}, reservationFrom(&devicepb.ReserveResponse{}))
	require.NotNil(t, reservationTo(device.Reservation{}).ContainerRes)
	require.Equal(t, device.Stats{}, statsFrom(nil))
	require.Equal(t, device.Fingerprint{Groups: []device.Group{}}, fingerprintFrom(nil), "nothing is something")
	s := statsFrom(&devicepb.StatsResponse{Groups: []*devicepb.DeviceGroupStats{nil, {InstanceStats: map[string]*devicepb.DeviceStats{"a": nil}}}})
	require.True(t, s.Groups[1].Instances["a"].Time.IsZero())
	group := func(a *pluginpb.Attribute) *devicepb.FingerprintResponse {
		return &devicepb.FingerprintResponse{DeviceGroup: []*devicepb.DeviceGroup{{Vendor: "v", DeviceType: "t", DeviceName: "n", Attributes: map[string]*pluginpb.Attribute{"x": a}}}}
	}
	for _, a := range []*pluginpb.Attribute{nil, {}, {Value: &pluginpb.Attribute_FloatVal{FloatVal: math.NaN()}}, {Value: &pluginpb.Attribute_IntVal{}, Unit: "ell"}} {
		require.ErrorContains(t, fingerprintFrom(group(a)).Err, `attribute "x"`)
	}
	require.Error(t, fingerprintFrom(&devicepb.FingerprintResponse{DeviceGroup: []*devicepb.DeviceGroup{nil}}).Err)
	deep := &devicepb.StatObject{}
	for range 1000 {
		deep = &devicepb.StatObject{Nested: map[string]*devicepb.StatObject{"x": deep}}
	}
	depth := 0
	for o := objectFrom(deep, 0); o != nil; o = o.Nested["x"] {
		depth++
	}
	require.Equal(t, maxDepth, depth)
	bad := "\xff\xfe"
	_, err := proto.Marshal(fingerprintTo([]device.Group{{Vendor: bad, Type: bad, Name: bad, Attributes: map[string]device.Attribute{bad: device.Text(bad)},
		Instances: []device.Instance{{ID: bad, Description: bad, PCIBusID: bad}}}}))
	require.NoError(t, err, "texts that the wire cannot carry")
}

// FuzzMessages reads what a plugin may send, and what was read is written and read
// the same again.
func FuzzMessages(f *testing.F) {
	n := 0
	for _, m := range []proto.Message{&devicepb.FingerprintResponse{}, &devicepb.ReserveResponse{}, &devicepb.StatsResponse{}} {
		fill(m.ProtoReflect(), &n, 5, map[string]bool{})
		b, err := proto.Marshal(m)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fp, res, st := &devicepb.FingerprintResponse{}, &devicepb.ReserveResponse{}, &devicepb.StatsResponse{}
		if proto.Unmarshal(b, fp) == nil {
			if one := fingerprintFrom(fp); one.Err == nil {
				require.NoError(t, device.Validate(one.Groups))
				require.Equal(t, one, fingerprintFrom(fingerprintTo(one.Groups)))
			}
		}
		if proto.Unmarshal(b, res) == nil {
			one := reservationFrom(res)
			require.Equal(t, one, reservationFrom(reservationTo(one)))
		}
		if proto.Unmarshal(b, st) == nil {
			one := statsTo(statsFrom(st), time.Unix(1, 0))
			// Not a number is equal to nothing; as bytes it is the same.
			x, err := proto.MarshalOptions{Deterministic: true}.Marshal(one)
			require.NoError(t, err)
			y, err := proto.MarshalOptions{Deterministic: true}.Marshal(statsTo(statsFrom(one), time.Unix(1, 0)))
			require.NoError(t, err)
			require.Equal(t, x, y)
		}
	})
}
