// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/device/deviceplugin/devicepb"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/pluginpb"
	"github.com/nodekeep/nodekeep/internal/pluginproc"
	"github.com/nodekeep/nodekeep/internal/pluginwire"
)

// Logger is the logger of a plugin that is served: structured lines on stderr,
// which the agent logs at their own level and under the plugin's name. It never
// fails, also when nobody reads. Every level is written; the agent filters.
func Logger() hclog.Logger { return pluginproc.Logger() }

// Serve serves p to the agent that started this program until the agent ends it:
// the whole main of a device plugin. Called as a program of its own it explains
// itself on stderr and exits with 1. A panic of a method is that call's error and
// in the log. Before Serve nothing may be printed on stdout, where agents read who
// answers; SIGINT and SIGPIPE are ignored.
func Serve(p device.Plugin) {
	pluginproc.Serve("device", "a device plugin", func(to grpc.ServiceRegistrar) {
		info := p.Info()
		base := &pluginwire.Server{Type: pluginpb.PluginType_DEVICE, Name: info.Name, Version: info.Version, Schema: info.ConfigSchema}
		if c, ok := p.(device.Configurer); ok {
			base.Configure = func(ctx context.Context, s driver.Setup) error { return c.Configure(ctx, s.Config) }
		}
		pluginpb.RegisterBasePluginServer(to, base)
		devicepb.RegisterDevicePluginServer(to, &server{p: p})
	})
}

// server serves a plugin on the wire.
type server struct {
	devicepb.UnimplementedDevicePluginServer
	p device.Plugin
}

// toStatus is a plugin's error on the wire.
func toStatus(err error) error {
	if errors.Is(err, device.ErrDisabled) {
		err = fmt.Errorf("%w: %s", err, disabled)
	}
	return pluginwire.Status(err)
}

// Fingerprint sends what there is. The wire has no word for "I cannot tell now",
// and other agents give up on a plugin whose stream ends: devices told of before
// are sent as unhealthy then.
func (s *server) Fingerprint(_ *devicepb.FingerprintRequest, stream grpc.ServerStreamingServer[devicepb.FingerprintResponse]) error {
	c, err := s.p.Fingerprint(stream.Context())
	if err != nil {
		return toStatus(err)
	}
	var last []device.Group
	for fp := range c {
		if fp.Err != nil && (len(last) == 0 || errors.Is(fp.Err, device.ErrDisabled)) {
			return toStatus(fp.Err)
		}
		if fp.Err != nil {
			fp.Groups = unhealthy(last, fp.Err.Error())
		}
		last = fp.Groups
		if err := stream.Send(fingerprintTo(fp.Groups)); err != nil {
			return err
		}
	}
	return over(stream.Context())
}

// unhealthy are the same devices, none of which can be used.
func unhealthy(groups []device.Group, why string) []device.Group {
	out := slices.Clone(groups)
	for i := range out {
		out[i].Instances = slices.Clone(out[i].Instances)
		for j := range out[i].Instances {
			out[i].Instances[j].Healthy, out[i].Instances[j].Description = false, why
		}
	}
	return out
}

// over is how a stream ends whose channel was closed.
func over(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return pluginwire.Status(errors.New("channel closed"))
}

// Reserve answers for one group of a task.
func (s *server) Reserve(ctx context.Context, req *devicepb.ReserveRequest) (*devicepb.ReserveResponse, error) {
	r, err := s.p.Reserve(ctx, req.GetDeviceIds())
	if err != nil {
		return nil, toStatus(err)
	}
	return reservationTo(r), nil
}

// Stats sends measurements.
func (s *server) Stats(req *devicepb.StatsRequest, stream grpc.ServerStreamingServer[devicepb.StatsResponse]) error {
	interval := req.GetCollectionInterval().AsDuration()
	if interval <= 0 {
		interval = time.Second
	}
	c, err := s.p.Stats(stream.Context(), interval)
	if err != nil {
		return toStatus(err)
	}
	for st := range c {
		if st.Err != nil {
			return toStatus(st.Err)
		}
		if err := stream.Send(statsTo(st, time.Now())); err != nil {
			return err
		}
	}
	return over(stream.Context())
}
