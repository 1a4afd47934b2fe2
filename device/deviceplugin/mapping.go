// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package deviceplugin

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/device/deviceplugin/devicepb"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/pluginpb"
)

// maxDepth is how deep a tree of measurements is read.
const maxDepth = 32

// valid makes a text one that the wire can carry.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func fingerprintTo(groups []device.Group) *devicepb.FingerprintResponse {
	out := &devicepb.FingerprintResponse{}
	for _, g := range groups {
		p := &devicepb.DeviceGroup{Vendor: valid(g.Vendor), DeviceType: valid(g.Type), DeviceName: valid(g.Name), Attributes: map[string]*pluginpb.Attribute{}}
		for _, in := range g.Instances {
			d := &devicepb.DetectedDevice{ID: valid(in.ID), Healthy: in.Healthy, HealthDescription: valid(in.Description)}
			if in.PCIBusID != "" {
				d.HwLocality = &devicepb.DeviceLocality{PciBusId: valid(in.PCIBusID)}
			}
			p.Devices = append(p.Devices, d)
		}
		for k, a := range g.Attributes {
			p.Attributes[valid(k)] = attributeTo(a)
		}
		out.DeviceGroup = append(out.DeviceGroup, p)
	}
	return out
}

// fingerprintFrom reads a fingerprint; a faulty one is one that says nothing.
func fingerprintFrom(m *devicepb.FingerprintResponse) device.Fingerprint {
	groups := []device.Group{}
	for _, p := range m.GetDeviceGroup() {
		g := device.Group{Vendor: p.GetVendor(), Type: p.GetDeviceType(), Name: p.GetDeviceName()}
		for _, d := range p.GetDevices() {
			g.Instances = append(g.Instances, device.Instance{ID: d.GetID(), Healthy: d.GetHealthy(), Description: d.GetHealthDescription(), PCIBusID: d.GetHwLocality().GetPciBusId()})
		}
		for k, a := range p.GetAttributes() {
			if g.Attributes == nil {
				g.Attributes = map[string]device.Attribute{}
			}
			g.Attributes[k] = attributeFrom(a)
		}
		groups = append(groups, g)
	}
	if err := device.Validate(groups); err != nil {
		return device.Fingerprint{Err: err}
	}
	return device.Fingerprint{Groups: groups}
}

func attributeTo(a device.Attribute) *pluginpb.Attribute {
	p := &pluginpb.Attribute{Unit: valid(a.Unit)}
	switch {
	case a.Int != nil:
		p.Value = &pluginpb.Attribute_IntVal{IntVal: *a.Int}
	case a.Float != nil:
		p.Value = &pluginpb.Attribute_FloatVal{FloatVal: *a.Float}
	case a.Text != nil:
		p.Value = &pluginpb.Attribute_StringVal{StringVal: valid(*a.Text)}
	case a.Bool != nil:
		p.Value = &pluginpb.Attribute_BoolVal{BoolVal: *a.Bool}
	}
	return p
}

func attributeFrom(p *pluginpb.Attribute) device.Attribute {
	a := device.Attribute{Unit: p.GetUnit()}
	switch v := p.GetValue().(type) {
	case *pluginpb.Attribute_IntVal:
		a.Int = &v.IntVal
	case *pluginpb.Attribute_FloatVal:
		a.Float = &v.FloatVal
	case *pluginpb.Attribute_StringVal:
		a.Text = &v.StringVal
	case *pluginpb.Attribute_BoolVal:
		a.Bool = &v.BoolVal
	}
	return a
}

// reservationTo always has a reservation in it: agents rely on that.
func reservationTo(r device.Reservation) *devicepb.ReserveResponse {
	out := &devicepb.ContainerReservation{Envs: map[string]string{}}
	for k, v := range r.Env {
		out.Envs[valid(k)] = valid(v)
	}
	for _, m := range r.Mounts {
		out.Mounts = append(out.Mounts, &devicepb.Mount{HostPath: valid(m.Source), TaskPath: valid(m.Target), ReadOnly: m.ReadOnly})
	}
	for _, d := range r.Devices {
		out.Devices = append(out.Devices, &devicepb.DeviceSpec{HostPath: valid(d.HostPath), TaskPath: valid(d.TaskPath), Permissions: valid(d.Permissions)})
	}
	return &devicepb.ReserveResponse{ContainerRes: out}
}

func reservationFrom(m *devicepb.ReserveResponse) (r device.Reservation) {
	p := m.GetContainerRes()
	if len(p.GetEnvs()) > 0 {
		r.Env = p.GetEnvs()
	}
	for _, m := range p.GetMounts() {
		r.Mounts = append(r.Mounts, driver.Mount{Source: m.GetHostPath(), Target: m.GetTaskPath(), ReadOnly: m.GetReadOnly()})
	}
	for _, d := range p.GetDevices() {
		r.Devices = append(r.Devices, driver.Device{HostPath: d.GetHostPath(), TaskPath: d.GetTaskPath(), Permissions: d.GetPermissions()})
	}
	return r
}

// statsTo fills times in: agents drop what has none.
func statsTo(s device.Stats, now time.Time) *devicepb.StatsResponse {
	out := &devicepb.StatsResponse{}
	for _, g := range s.Groups {
		p := &devicepb.DeviceGroupStats{Vendor: valid(g.Vendor), Type: valid(g.Type), Name: valid(g.Name), InstanceStats: map[string]*devicepb.DeviceStats{}}
		for id, in := range g.Instances {
			at := in.Time
			if at.IsZero() {
				at = now
			}
			d := &devicepb.DeviceStats{Stats: objectTo(in.Stats, 0), Timestamp: timestamppb.New(at)}
			if in.Summary != nil {
				d.Summary = valueTo(*in.Summary)
			}
			p.InstanceStats[valid(id)] = d
		}
		out.Groups = append(out.Groups, p)
	}
	return out
}

func statsFrom(m *devicepb.StatsResponse) (s device.Stats) {
	for _, p := range m.GetGroups() {
		g := device.GroupStats{Vendor: p.GetVendor(), Type: p.GetType(), Name: p.GetName(), Instances: map[string]device.InstanceStats{}}
		for id, d := range p.GetInstanceStats() {
			in := device.InstanceStats{Stats: objectFrom(d.GetStats(), 0)}
			if d.GetSummary() != nil {
				v := valueFrom(d.GetSummary())
				in.Summary = &v
			}
			if t := d.GetTimestamp(); t.IsValid() {
				in.Time = t.AsTime()
			}
			g.Instances[id] = in
		}
		s.Groups = append(s.Groups, g)
	}
	return s
}

func objectTo(o *device.Object, depth int) *devicepb.StatObject {
	if o == nil || depth == maxDepth {
		return nil
	}
	out := &devicepb.StatObject{Nested: map[string]*devicepb.StatObject{}, Attributes: map[string]*devicepb.StatValue{}}
	for k, n := range o.Nested {
		if p := objectTo(n, depth+1); p != nil {
			out.Nested[valid(k)] = p
		}
	}
	for k, v := range o.Values {
		out.Attributes[valid(k)] = valueTo(v)
	}
	return out
}

func objectFrom(p *devicepb.StatObject, depth int) *device.Object {
	if p == nil || depth == maxDepth {
		return nil
	}
	o := &device.Object{}
	for k, n := range p.GetNested() {
		if c := objectFrom(n, depth+1); c != nil {
			if o.Nested == nil {
				o.Nested = map[string]*device.Object{}
			}
			o.Nested[k] = c
		}
	}
	for k, v := range p.GetAttributes() {
		if o.Values == nil {
			o.Values = map[string]device.Value{}
		}
		o.Values[k] = valueFrom(v)
	}
	return o
}

func valueTo(v device.Value) *devicepb.StatValue {
	p := &devicepb.StatValue{Unit: valid(v.Unit), Desc: valid(v.Description)}
	if v.Float != nil {
		p.FloatNumeratorVal = wrapperspb.Double(*v.Float)
	}
	if v.FloatOf != nil {
		p.FloatDenominatorVal = wrapperspb.Double(*v.FloatOf)
	}
	if v.Int != nil {
		p.IntNumeratorVal = wrapperspb.Int64(*v.Int)
	}
	if v.IntOf != nil {
		p.IntDenominatorVal = wrapperspb.Int64(*v.IntOf)
	}
	if v.Text != nil {
		p.StringVal = wrapperspb.String(valid(*v.Text))
	}
	if v.Bool != nil {
		p.BoolVal = wrapperspb.Bool(*v.Bool)
	}
	return p
}

// unwrap reads a wrapper message, whose absence is not zero.
func unwrap[T any, W interface{ GetValue() T }](has bool, w W) *T {
	if !has {
		return nil
	}
	v := w.GetValue()
	return &v
}

func valueFrom(p *devicepb.StatValue) device.Value {
	return device.Value{
		Float:   unwrap(p.GetFloatNumeratorVal() != nil, p.GetFloatNumeratorVal()),
		FloatOf: unwrap(p.GetFloatDenominatorVal() != nil, p.GetFloatDenominatorVal()),
		Int:     unwrap(p.GetIntNumeratorVal() != nil, p.GetIntNumeratorVal()),
		IntOf:   unwrap(p.GetIntDenominatorVal() != nil, p.GetIntDenominatorVal()),
		Text:    unwrap(p.GetStringVal() != nil, p.GetStringVal()),
		Bool:    unwrap(p.GetBoolVal() != nil, p.GetBoolVal()),
		Unit:    p.GetUnit(), Description: p.GetDesc(),
	}
}
