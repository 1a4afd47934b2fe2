// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package pluginwire

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverconfig"
	"github.com/nodekeep/nodekeep/internal/pluginpb"
)

// The bytes are those that agents of the wire send.
func TestPack(t *testing.T) {
	for in, want := range map[string]string{
		`"hi"`: "a26869", `true`: "c3", `false`: "c2", `null`: "c0", `300`: "cd012c", `-1`: "ff", `1.5`: "cb3ff8000000000000",
		`0`: "00", `127`: "7f", `128`: "cc80", `65536`: "ce00010000", `1099511627776`: "cf0000010000000000", `-33`: "d0df", `-129`: "d1ff7f",
		`-32769`: "d2ffff7fff", `-2147483649`: "d3ffffffff7fffffff", `-9223372036854775808`: "d38000000000000000",
		`9223372036854775808`: "b3" + hex.EncodeToString([]byte("9223372036854775808")),
		`0.1`:                 "cb3fb999999999999a", `1e3`: "cd03e8", `2.0`: "02",
		`{}`: "80", `[]`: "90", `{"b":true,"a":null}`: "82a161c0a162c3", `[1,"x"]`: "9201a178",
		`"` + strings.Repeat("x", 32) + `"`: "d920" + strings.Repeat("78", 32),
	} {
		got, err := Pack(json.RawMessage(in))
		require.NoError(t, err, in)
		require.Equal(t, want, hex.EncodeToString(got), in)
		back, err := Unpack(got)
		require.NoError(t, err, in)
		if in != `9223372036854775808` {
			var a, b any
			require.NoError(t, json.Unmarshal([]byte(in), &a))
			require.NoError(t, json.Unmarshal(back, &b))
			require.Equal(t, a, b)
		}
	}
	for _, in := range []string{`{`, `1 2`, `1e999`, strings.Repeat("[", 100) + strings.Repeat("]", 100)} {
		_, err := Pack(json.RawMessage(in))
		require.ErrorIs(t, err, ErrConfig, in)
	}
	for n, code := range map[int]string{300: "da012c", 70000: "db00011170"} {
		got, err := Pack(json.RawMessage(`"` + strings.Repeat("x", n) + `"`))
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(hex.EncodeToString(got[:5]), code))
	}
	long := "[" + strings.Repeat("1,", 69999) + "1]"
	got, err := Pack(json.RawMessage(long))
	require.NoError(t, err)
	back, err := Unpack(got)
	require.NoError(t, err)
	require.Equal(t, long, string(back))
}

func TestUnpack(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "c0": "null", "ca3fc00000": "1.5", "d0ff": "-1", "d1ffff": "-1", "cc05": "5", "d20000000a": "10", "d3ffffffffffffffff": "-1",
		"c403616263": `"abc"`, "c50003616263": `"abc"`, "c600000003616263": `"abc"`, "d903616263": `"abc"`, "da0003616263": `"abc"`, "db00000003616263": `"abc"`,
		"dc000101": "[1]", "dd0000000101": "[1]", "de0001a16101": `{"a":1}`, "df00000001a16101": `{"a":1}`, "cfffffffffffffffff": "18446744073709551615",
	} {
		raw, err := hex.DecodeString(in)
		require.NoError(t, err)
		got, err := Unpack(raw)
		require.NoError(t, err, in)
		require.Equal(t, want, string(got), in)
	}
	for _, in := range []string{"c1", "d40000", "c70000", "a5616263", "92", "81a161", "dd7fffffff", "df7fffffff", "810101", "0102", "cb7ff8000000000000",
		"ca7f800000", "a2fffe", strings.Repeat("91", 100) + "01", "c6ffffffff"} {
		raw, err := hex.DecodeString(in)
		require.NoError(t, err)
		_, err = Unpack(raw)
		require.ErrorIs(t, err, ErrConfig, in)
	}
}

var rich = driver.Object(map[string]*driver.Schema{
	"n": driver.Default(driver.Attr("number", false), "3"), "s": driver.Attr("string", false), "any": driver.Attr("any", false),
	"list": driver.Attr("list(string)", false), "map": driver.Attr("map(number)", false), "maps": driver.Attr("list(map(string))", false),
	"block": {Kind: driver.KindBlockList, Nested: driver.Object(map[string]*driver.Schema{"x": driver.Attr("number", true), "y": driver.Attr("bool", false)})},
	"set":   {Kind: driver.KindBlockSet, Nested: driver.Object(map[string]*driver.Schema{"z": driver.Attr("string", false)})},
	"lit":   {Kind: driver.KindLiteral, Literal: `"k"`},
	"bm":    {Kind: driver.KindBlockMap, Labels: []string{"l"}, Nested: driver.Object(map[string]*driver.Schema{"v": driver.Attr("string", false)})},
})

// A configuration decoded by an agent comes out as if it had been decoded here.
func TestDecode(t *testing.T) {
	for in, want := range map[string]string{
		``:            `{"n":3,"s":null,"any":null,"list":null,"map":null,"maps":null,"block":[],"set":[],"lit":"k","bm":{}}`,
		`{"n":"0.1"}`: `{"n":0.1}`, `{"n":7,"unknown":[1]}`: `{"n":7}`, `{"s":5}`: `{"s":"5"}`, `{"any":{"a":[1,"b"]}}`: `{"any":{"a":[1,"b"]}}`,
		`{"map":{"a":"5"},"list":["a"],"maps":[{"a":"b"}]}`:                           `{"map":{"a":5},"list":["a"],"maps":[{"a":"b"}]}`,
		`{"block":[{"x":"1","y":null},{"x":2,"y":true}],"set":[{"z":"b"},{"z":"a"}]}`: `{"block":[{"x":1,"y":null},{"x":2,"y":true}],"set":[{"z":"a"},{"z":"b"}]}`,
		`{"bm":{"one":{"v":"x"}}}`:                                                    `{"bm":{"one":{"v":"x"}}}`,
		`{"s":"${not} a %{template}"}`:                                                `{"s":"${not} a %{template}"}`,
	} {
		b, err := Pack(json.RawMessage(in))
		require.NoError(t, err)
		got, err := Decode(rich, b)
		require.NoError(t, err, in)
		var g, w map[string]any
		require.NoError(t, json.Unmarshal(got, &g))
		require.NoError(t, json.Unmarshal([]byte(want), &w))
		require.Len(t, g, 10)
		for k, v := range w {
			require.Equal(t, v, g[k], "%s: %s", in, k)
		}
	}
	for in, want := range map[string]string{`{"n":"many"}`: "config.n", `{"block":[{"x":"a"}]}`: "config.block[0].x", `[]`: "config", `{"list":"x"}`: `attribute "list"`,
		`{"n":"1e99999"}`: "too large"} {
		b, err := Pack(json.RawMessage(in))
		require.NoError(t, err)
		_, err = Decode(rich, b)
		require.ErrorContains(t, err, want, in)
	}
	_, err := Decode(driver.Object(map[string]*driver.Schema{"a": nil}), []byte{0x80})
	require.ErrorIs(t, err, driverconfig.ErrSchema)
}

// Names that our schemas leave out are spelled out where the wire needs them, and
// the schema means the same as before.
func TestSchema(t *testing.T) {
	back, err := SchemaOf(SpecOf(Named(rich, "")))
	require.NoError(t, err)
	require.Equal(t, "n", back.Attrs["n"].Nested.Name)
	require.Empty(t, back.Attrs["s"].Name)
	raw := json.RawMessage(`{"n":1,"s":"x","block":[{"x":1}],"bm":{"a":[{"v":"b"}]}}`)
	want, err := driverconfig.Eval(rich, raw, nil, nil)
	require.NoError(t, err)
	got, err := driverconfig.Eval(back, raw, nil, nil)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
	none, err := SchemaOf(nil)
	require.NoError(t, err)
	require.Nil(t, none)
	require.Nil(t, SpecOf(nil))
}

// setAll fills every field of a message; a oneof is walked kind by kind by the
// caller.
func setAll(m protoreflect.Message, n *int, depth int) {
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		*n++
		switch {
		case f.ContainingOneof() != nil:
		case f.IsMap() && depth < 4:
			v := m.Mutable(f).Map().NewValue()
			setAll(v.Message(), n, depth+1)
			leaf(v.Message())
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("k").MapKey(), v)
		case f.IsList() && f.Message() != nil && depth < 4:
			v := m.Mutable(f).List().AppendMutable().Message()
			setAll(v, n, depth+1)
			leaf(v)
		case f.Message() != nil && !f.IsMap() && !f.IsList() && depth < 4:
			setAll(m.Mutable(f).Message(), n, depth+1)
			leaf(m.Mutable(f).Message())
		case f.IsList() && f.Message() == nil:
			m.Mutable(f).List().Append(value(f, *n))
		case f.Message() == nil:
			m.Set(f, value(f, *n))
		}
	}
}

// leaf gives a spec without a kind one.
func leaf(m protoreflect.Message) {
	if s, ok := m.Interface().(*pluginpb.Spec); ok && s.Block == nil {
		s.Block = &pluginpb.Spec_Literal{Literal: &pluginpb.Literal{Value: "1"}}
	}
}

func value(f protoreflect.FieldDescriptor, n int) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(fmt.Sprint("text", n))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{0x80})
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(f.Enum().Values().Get(f.Enum().Values().Len() - 1).Number())
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	}
	panic(f.Kind().String())
}

// Every kind of schema, with every field set, survives the way into a
// driver.Schema and back.
func TestEveryKind(t *testing.T) {
	kinds := (&pluginpb.Spec{}).ProtoReflect().Descriptor().Oneofs().Get(0).Fields()
	require.Equal(t, 10, kinds.Len(), "a kind was added to the wire: give driver.Schema one")
	for i := range kinds.Len() {
		f := kinds.Get(i)
		s := &pluginpb.Spec{}
		n := 0
		setAll(s.ProtoReflect().Mutable(f).Message(), &n, 0)
		schema, err := SchemaOf(s)
		require.NoError(t, err, f.Name())
		require.True(t, proto.Equal(s, SpecOf(schema)), "%s: %v became %v", f.Name(), s, SpecOf(schema))
	}
}

// What an agent says of its node likewise, and the other messages of the service.
func TestNode(t *testing.T) {
	m := &pluginpb.NomadDriverConfig{}
	n := 0
	setAll(m.ProtoReflect(), &n, 0)
	m.Topology.Distances = &pluginpb.ClientTopologySLIT{Dimension: 2, Values: []uint32{10, 20, 30, 40}}
	require.True(t, proto.Equal(m, nodeTo(nodeFrom(m))), "%v became %v", m, nodeTo(nodeFrom(m)))
	m.Topology.Distances.Values = m.Topology.Distances.Values[:3]
	require.Nil(t, nodeFrom(m).Distances, "a short matrix is none")
	m.Topology.Distances.Dimension = 1 << 31
	require.Nil(t, nodeFrom(m).Distances)
	require.Nil(t, nodeFrom(nil))
	require.Len(t, nodeTo(&driver.Node{Distances: [][]int{{1}, {2, 3}}}).Topology.Distances.Values, 4, "never a short one")

	covered := []string{"PluginInfoResponse: type plugin_api_versions plugin_version name", "ConfigSchemaResponse: spec",
		"SetConfigRequest: msgpack_config nomad_config plugin_api_version", "NomadConfig: driver"} // by TestServer
	all := pluginpb.File_internal_pluginpb_base_proto.Messages()
	for i := range all.Len() {
		d := all.Get(i)
		var names []string
		for j := range d.Fields().Len() {
			names = append(names, string(d.Fields().Get(j).Name()))
		}
		line := fmt.Sprintf("%s: %s", d.Name(), strings.Join(names, " "))
		inNode := slices.Contains([]string{"NomadDriverConfig", "ClientTopology", "ClientTopologySLIT", "ClientTopologyCore"}, string(d.Name()))
		if len(names) > 0 && !inNode && !slices.Contains(covered, line) {
			t.Errorf("no test covers %s", line)
		}
	}
}

func TestServer(t *testing.T) {
	var got driver.Setup
	s := &Server{Type: pluginpb.PluginType_DRIVER, Name: "d", Version: "1.0.0", Schema: rich,
		Configure: func(_ context.Context, s driver.Setup) error {
			if got = s; s.Node != nil && s.Node.MinPort == 13 {
				return errors.New("unlucky")
			}
			return nil
		}}
	info, err := s.PluginInfo(t.Context(), nil)
	require.NoError(t, err)
	require.True(t, proto.Equal(&pluginpb.PluginInfoResponse{Type: pluginpb.PluginType_DRIVER, PluginApiVersions: []string{"v0.1.0"}, PluginVersion: "1.0.0", Name: "d"}, info))
	schema, err := s.ConfigSchema(t.Context(), nil)
	require.NoError(t, err)
	require.True(t, proto.Equal(SpecOf(Named(rich, "")), schema.Spec))

	for _, req := range []*pluginpb.SetConfigRequest{{}, {PluginApiVersion: "v0.1.0"}} { // agents begin so
		_, err = s.SetConfig(t.Context(), req)
		require.NoError(t, err)
		require.Nil(t, got.Node)
		require.Contains(t, string(got.Config), `"n":3`)
	}
	config, err := Pack(json.RawMessage(`{"n":"5"}`))
	require.NoError(t, err)
	req := &pluginpb.SetConfigRequest{MsgpackConfig: config, PluginApiVersion: "0.1.0", NomadConfig: &pluginpb.NomadConfig{Driver: &pluginpb.NomadDriverConfig{ClientMinPort: 5}}}
	_, err = s.SetConfig(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, 5, got.Node.MinPort)
	require.Contains(t, string(got.Config), `"n":5`)
	req.NomadConfig.Driver.ClientMinPort = 13
	_, err = s.SetConfig(t.Context(), req)
	require.Equal(t, "SetConfig failed: unlucky", status.Convert(err).Message())
	require.Equal(t, codes.Unknown, status.Code(err))
	_, err = s.SetConfig(t.Context(), &pluginpb.SetConfigRequest{PluginApiVersion: "v3.0.0"})
	require.ErrorContains(t, err, "no common version")
	s.Type = pluginpb.PluginType_DEVICE
	req.NomadConfig.Driver.ClientMinPort = 1
	_, err = s.SetConfig(t.Context(), req)
	require.NoError(t, err)
	require.Nil(t, got.Node, "devices do not get it")
}

func TestVersions(t *testing.T) {
	for _, ok := range []string{"v0.1.0", "0.1.0", "v0.1", "v0.1.0+build"} {
		got, err := negotiate([]string{"v0.2.0", ok})
		require.NoError(t, err)
		require.Equal(t, ok, got)
	}
	for _, bad := range [][]string{nil, {"v0.2.0"}, {"v0.1.0-rc1"}, {"x"}, {""}} {
		_, err := negotiate(bad)
		require.ErrorIs(t, err, ErrVersion, bad)
	}
}

// What the contract keeps apart stays apart, in both directions, and says to other
// agents what they understand.
func TestErrors(t *testing.T) {
	alive, dead := func() bool { return false }, func() bool { return true }
	ctx := t.Context()
	require.NoError(t, Status(nil))
	require.NoError(t, Error(ctx, nil, alive))
	for _, want := range kinds {
		err := Error(ctx, Status(fmt.Errorf("task 5: %w: for a reason", want)), dead)
		require.ErrorIs(t, err, want)
		require.EqualError(t, err, "task 5: "+want.Error()+": for a reason")
		for _, other := range kinds {
			require.Equal(t, want == other, errors.Is(err, other))
		}
	}
	require.Len(t, kinds, len(pluginpb.Problem_Kind_name)-1, "each kind has its error")
	require.True(t, strings.HasSuffix(status.Convert(Status(driver.ErrTaskNotFound)).Message(), ": task not found for given id"))
	require.Equal(t, codes.Unknown, status.Code(Status(errors.New("x"))))

	for _, start := range []bool{true, false} {
		for _, again := range []bool{true, false} {
			err := errors.New("x")
			if again {
				err = driver.Recoverable(err)
			}
			st := toStatus(err, start)
			if start || again {
				require.Equal(t, codes.FailedPrecondition, status.Code(st))
				first := status.Convert(st).Proto().Details[0]
				require.Equal(t, "type.googleapis.com/hashicorp.nomad.plugins.shared.structs.RecoverableError", first.TypeUrl)
				require.Equal(t, map[bool]string{true: "0801", false: ""}[again], hex.EncodeToString(first.Value))
			}
			require.Equal(t, again, driver.IsRecoverable(Error(ctx, st, alive)))
		}
	}
	foreign, err := status.New(codes.FailedPrecondition, "later").WithDetails(&pluginpb.RecoverableError{Recoverable: true})
	require.NoError(t, err)
	require.True(t, driver.IsRecoverable(Error(ctx, foreign.Err(), alive)))

	for text, want := range map[string]error{
		"task not found for given id": driver.ErrTaskNotFound, "rpc: task not found for given id": driver.ErrTaskNotFound, "task does not exist: x": driver.ErrTaskNotFound,
		"SignalTask is not supported by this driver": driver.ErrNotImplemented, "driver does not support exec": driver.ErrNotImplemented,
		"CreateNetwork RPC not supported by driver": driver.ErrNotImplemented, `task with ID "x" already started`: driver.ErrTaskExists,
	} {
		require.ErrorIs(t, Error(ctx, status.Error(codes.Unknown, text), alive), want, text)
	}
	for _, err := range []error{status.Error(codes.Unavailable, "EOF"), status.Error(codes.Canceled, "x"), status.Error(codes.DeadlineExceeded, "x"), io.EOF} {
		require.ErrorIs(t, Error(ctx, err, alive), driver.ErrUnavailable)
		require.ErrorIs(t, Error(ctx, err, dead), driver.ErrPluginGone)
	}
	require.ErrorIs(t, Error(ctx, status.Error(codes.Unimplemented, "x"), alive), driver.ErrNotImplemented)
	why := errors.New("why")
	ended, cancel := context.WithCancelCause(ctx)
	cancel(why)
	require.ErrorIs(t, Error(ended, status.Error(codes.Unavailable, "x"), dead), why)
	require.Equal(t, codes.Canceled, status.Code(Status(context.Canceled)))
	require.Equal(t, codes.DeadlineExceeded, status.Code(Status(fmt.Errorf("x: %w", context.DeadlineExceeded))))
}

var beyond = regexp.MustCompile(`[0-9]{19}`)

func FuzzUnpack(f *testing.F) {
	for _, s := range []string{"82a161c0a162c3", "dc000101", "d3ffffffffffffffff", "919191c0", "cb3ff8000000000000"} {
		b, err := hex.DecodeString(s)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		raw, err := Unpack(b)
		if err != nil || len(b) == 0 {
			return
		}
		again, err := Pack(raw)
		require.NoError(t, err)
		back, err := Unpack(again)
		require.NoError(t, err)
		var v, w any
		dec := json.NewDecoder(bytes.NewReader(raw))
		require.NoError(t, dec.Decode(&v))
		require.NoError(t, json.Unmarshal(back, &w))
		if !beyond.Match(raw) { // a number of more than 63 bits is text
			require.Equal(t, fmt.Sprint(v), fmt.Sprint(w))
		}
		_, _ = Decode(rich, b)
	})
}

func FuzzSchema(f *testing.F) {
	b, err := proto.Marshal(SpecOf(Named(rich, "")))
	require.NoError(f, err)
	f.Add(b, `{"n":1}`)
	f.Fuzz(func(t *testing.T, b []byte, config string) {
		s := &pluginpb.Spec{}
		if proto.Unmarshal(b, s) != nil {
			return
		}
		began := time.Now()
		defer func() {
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
		}()
		schema, err := SchemaOf(s)
		if err != nil {
			require.ErrorIs(t, err, ErrSchema)
			return
		}
		again, err := SchemaOf(SpecOf(schema))
		require.NoError(t, err)
		require.Equal(t, schema, again)
		_ = Named(schema, "x")
		decoded, err := driverconfig.Eval(schema, json.RawMessage(config), nil, nil)
		if err != nil {
			return
		}
		packed, err := Pack(decoded)
		if err != nil {
			require.ErrorIs(t, err, ErrConfig)
			return
		}
		if same, err := Decode(schema, packed); err == nil {
			require.True(t, json.Valid(same))
		}
	})
}
