// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package pluginwire is what the wires of drivers and devices have in common: the
// base service in both directions, schemas, configurations, errors.
//
//	plugin's Spec ──SchemaOf──▶ driver.Schema ──driverconfig.Eval──▶ JSON ──Pack──▶ msgpack
//	our Schema ────SpecOf────▶ Spec      msgpack ──Unpack──▶ JSON ──driverconfig.Conform──▶ the driver
//
// What comes from a plugin is not trusted: sizes, depths and texts are bounded
// where they are read.
package pluginwire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverconfig"
	"github.com/nodekeep/nodekeep/internal/pluginpb"
)

// APIVersion is the one version of the wire that there is.
const APIVersion = "v0.1.0"

var (
	// ErrVersion says that plugin and agent have no version in common.
	ErrVersion = errors.New("no common version of the plugin wire")
	// ErrIdentity says that a plugin does not say properly who it is.
	ErrIdentity = errors.New("the plugin does not say who it is")
	// ErrKind says that a plugin is one of another kind; it is an ErrIdentity.
	ErrKind error = otherKind{}
)

type otherKind struct{}

func (otherKind) Error() string        { return "a plugin of another kind" }
func (otherKind) Is(target error) bool { return target == ErrIdentity }

var (
	versionForm = regexp.MustCompile(`^v?[0-9]+(\.[0-9]+){0,2}([-+][0-9A-Za-z.+-]*)?$`)
	nameForm    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)
)

// Base is a plugin as its base service describes it.
type Base struct {
	Name, Version string
	Schema        *driver.Schema // of the operator's configuration; nil takes none

	client pluginpb.BasePluginClient
	api    string
}

// Meet asks a plugin who it is. ctx must have a deadline: the plugin may be silent.
func Meet(ctx context.Context, conn grpc.ClientConnInterface, want pluginpb.PluginType) (*Base, error) {
	b := &Base{client: pluginpb.NewBasePluginClient(conn)}
	info, err := b.client.PluginInfo(ctx, &pluginpb.PluginInfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("PluginInfo: %w", err)
	}
	b.Name, b.Version = info.GetName(), info.GetPluginVersion()
	switch {
	case info.GetType() != want:
		kind := ErrIdentity
		if t := info.GetType(); t == pluginpb.PluginType_DRIVER || t == pluginpb.PluginType_DEVICE {
			kind = ErrKind
		}
		return nil, fmt.Errorf("%w: it is of type %v, not %v", kind, info.GetType(), want)
	case !nameForm.MatchString(b.Name):
		return nil, fmt.Errorf("%w: name %.40q", ErrIdentity, b.Name)
	case !versionForm.MatchString(b.Version) || len(b.Version) > 128:
		return nil, fmt.Errorf("%w: version %.40q", ErrIdentity, b.Version)
	}
	if b.api, err = negotiate(info.GetPluginApiVersions()); err != nil {
		return nil, err
	}
	s, err := b.client.ConfigSchema(ctx, &pluginpb.ConfigSchemaRequest{})
	if err != nil {
		return nil, fmt.Errorf("ConfigSchema: %w", err)
	}
	if b.Schema, err = SchemaOf(s.GetSpec()); err != nil {
		return nil, fmt.Errorf("ConfigSchema: %w", err)
	}
	return b, nil
}

// negotiate returns the plugin's own spelling of our version.
func negotiate(theirs []string) (string, error) {
	for _, v := range theirs {
		if !versionForm.MatchString(v) || len(v) > 128 {
			return "", fmt.Errorf("%w: %.40q is no version", ErrVersion, v)
		}
		core, _, _ := strings.Cut(strings.TrimPrefix(v, "v"), "+")
		for strings.Count(core, ".") < 2 {
			core += ".0"
		}
		if "v"+core == APIVersion {
			return v, nil
		}
	}
	return "", fmt.Errorf("%w: the plugin speaks %.200q, we speak %s", ErrVersion, theirs, APIVersion)
}

// Configure sends the operator's configuration, HCL-JSON, decoded with the
// plugin's schema so that defaults apply, and what the plugin may know of the node.
func (b *Base) Configure(ctx context.Context, raw json.RawMessage, node *driver.Node) error {
	decoded, err := driverconfig.Eval(b.Schema, raw, nil, nil)
	if err != nil {
		return err
	}
	req := &pluginpb.SetConfigRequest{PluginApiVersion: b.api}
	if b.Schema != nil {
		if req.MsgpackConfig, err = Pack(decoded); err != nil {
			return err
		}
	}
	if node != nil {
		req.NomadConfig = &pluginpb.NomadConfig{Driver: nodeTo(node)}
	}
	if _, err = b.client.SetConfig(ctx, req); err != nil {
		st, _ := status.FromError(err)
		return fmt.Errorf("the plugin refuses its configuration: %s", strings.TrimPrefix(st.Message(), setConfigFailed))
	}
	return nil
}

const setConfigFailed = "SetConfig failed: "

// nodeTo is a node on the wire. A driver always gets a topology: some divide by
// what it sums up to.
func nodeTo(n *driver.Node) *pluginpb.NomadDriverConfig {
	t := &pluginpb.ClientTopology{OverrideTotalCompute: count(n.TotalMHz), OverrideWitholdCompute: count(n.ReservedMHz)}
	for _, id := range n.NodeIDs {
		t.NodeIds = append(t.NodeIds, uint32(id))
	}
	if size := len(n.Distances); size > 0 {
		t.Distances = &pluginpb.ClientTopologySLIT{Dimension: uint32(size)}
		for _, row := range n.Distances {
			for i := range size { // never short: others index it unchecked
				d := 0
				if i < len(row) {
					d = row[i]
				}
				t.Distances.Values = append(t.Distances.Values, uint32(d))
			}
		}
	}
	for _, c := range n.Cores {
		grade := pluginpb.CoreGrade_Performance
		if c.Efficiency {
			grade = pluginpb.CoreGrade_Efficiency
		}
		t.Cores = append(t.Cores, &pluginpb.ClientTopologyCore{SocketId: uint32(c.Socket), NodeId: uint32(c.NodeID), CoreId: uint32(c.ID),
			CoreGrade: grade, Disable: c.Disabled, BaseSpeed: count(c.BaseMHz), MaxSpeed: count(c.MaxMHz), GuessSpeed: count(c.GuessMHz)})
	}
	return &pluginpb.NomadDriverConfig{ClientMinPort: uint32(n.MinPort), ClientMaxPort: uint32(n.MaxPort), Topology: t}
}

// nodeFrom reads a node; nil is nil.
func nodeFrom(d *pluginpb.NomadDriverConfig) *driver.Node {
	if d == nil {
		return nil
	}
	t := d.GetTopology()
	n := &driver.Node{MinPort: int(d.GetClientMinPort()), MaxPort: int(d.GetClientMaxPort()),
		TotalMHz: int64(t.GetOverrideTotalCompute()), ReservedMHz: int64(t.GetOverrideWitholdCompute())}
	for _, id := range t.GetNodeIds() {
		n.NodeIDs = append(n.NodeIDs, int(id))
	}
	values := t.GetDistances().GetValues()
	if size := int(t.GetDistances().GetDimension()); size > 0 && len(values)/size >= size {
		for r := range size {
			row := make([]int, size)
			for i := range row {
				row[i] = int(values[r*size+i])
			}
			n.Distances = append(n.Distances, row)
		}
	}
	for _, c := range t.GetCores() {
		n.Cores = append(n.Cores, driver.Core{ID: int(c.GetCoreId()), Socket: int(c.GetSocketId()), NodeID: int(c.GetNodeId()),
			Efficiency: c.GetCoreGrade() != pluginpb.CoreGrade_Performance, Disabled: c.GetDisable(),
			BaseMHz: int64(c.GetBaseSpeed()), MaxMHz: int64(c.GetMaxSpeed()), GuessMHz: int64(c.GetGuessSpeed())})
	}
	return n
}

// Server serves the base service of a plugin.
type Server struct {
	pluginpb.UnimplementedBasePluginServer
	Type          pluginpb.PluginType
	Name, Version string
	Schema        *driver.Schema
	// Configure may be nil. It gets every configuration that fits the schema.
	Configure func(context.Context, driver.Setup) error
}

// PluginInfo says who the plugin is.
func (s *Server) PluginInfo(context.Context, *pluginpb.PluginInfoRequest) (*pluginpb.PluginInfoResponse, error) {
	return &pluginpb.PluginInfoResponse{Type: s.Type, Name: s.Name, PluginVersion: s.Version, PluginApiVersions: []string{APIVersion}}, nil
}

// ConfigSchema says what the operator may configure.
func (s *Server) ConfigSchema(context.Context, *pluginpb.ConfigSchemaRequest) (*pluginpb.ConfigSchemaResponse, error) {
	return &pluginpb.ConfigSchemaResponse{Spec: SpecOf(Named(s.Schema, ""))}, nil
}

// SetConfig configures the plugin, or checks that it could be. Agents send no
// bytes where they have nothing to say.
func (s *Server) SetConfig(ctx context.Context, req *pluginpb.SetConfigRequest) (*pluginpb.SetConfigResponse, error) {
	setup := driver.Setup{}
	if s.Type == pluginpb.PluginType_DRIVER {
		setup.Node = nodeFrom(req.GetNomadConfig().GetDriver())
	}
	if _, err := negotiate([]string{req.GetPluginApiVersion()}); err != nil && req.GetPluginApiVersion() != "" {
		return nil, status.Error(codes.Unknown, setConfigFailed+err.Error())
	}
	var err error
	if s.Schema != nil {
		setup.Config, err = Decode(s.Schema, req.GetMsgpackConfig())
	}
	if err == nil && s.Configure != nil {
		err = s.Configure(ctx, setup)
	}
	if err != nil {
		return nil, status.Error(codes.Unknown, setConfigFailed+strings.ToValidUTF8(err.Error(), string(utf8.RuneError)))
	}
	return &pluginpb.SetConfigResponse{}, nil
}

// Decode reads a configuration as the schema has it. No bytes are one in which
// nothing is said.
func Decode(schema *driver.Schema, b []byte) (json.RawMessage, error) {
	if len(b) == 0 {
		if out, err := driverconfig.Eval(schema, nil, nil, nil); err == nil {
			return out, nil
		}
	}
	raw, err := Unpack(b)
	if err != nil {
		return nil, err
	}
	return driverconfig.Conform(schema, raw)
}
