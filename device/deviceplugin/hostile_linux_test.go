// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package deviceplugin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/nodekeep/nodekeep/device/deviceplugin"
	"github.com/nodekeep/nodekeep/device/deviceplugin/devicepb"
	"github.com/nodekeep/nodekeep/internal/pluginpb"
	"github.com/nodekeep/nodekeep/internal/pluginproc"
)

// hostile plays programs that are no proper plugins.
func hostile(role string) bool {
	mode, ok := strings.CutPrefix(role, "h-")
	if !ok {
		return false
	}
	switch mode {
	case "garbage":
		fmt.Println("\x00\xff{}||| what is this")
		select {}
	case "silent":
		select {}
	case "exit":
		fmt.Fprintln(os.Stderr, "no card")
		os.Exit(3)
	case "version":
		fmt.Printf("1|3|unix|%s|grpc|\n", filepath.Join(os.Getenv("PLUGIN_UNIX_SOCKET_DIR"), "s"))
		select {}
	case "endless":
		b := bytes.Repeat([]byte("x"), 1<<16)
		for {
			if _, err := os.Stdout.Write(b); err != nil {
				os.Exit(1)
			}
		}
	}
	e := &evil{mode: mode}
	pluginproc.Serve("device", "evil", func(to grpc.ServiceRegistrar) {
		pluginpb.RegisterBasePluginServer(to, e)
		if mode != "service" {
			devicepb.RegisterDevicePluginServer(to, e)
		}
	})
	return true
}

// evil speaks the wire, and says what it should not.
type evil struct {
	pluginpb.UnimplementedBasePluginServer
	devicepb.UnimplementedDevicePluginServer
	mode string
}

func (e *evil) PluginInfo(ctx context.Context, _ *pluginpb.PluginInfoRequest) (*pluginpb.PluginInfoResponse, error) {
	r := &pluginpb.PluginInfoResponse{Type: pluginpb.PluginType_DEVICE, Name: "evil", PluginVersion: "v0.0.1", PluginApiVersions: []string{"v0.1.0"}}
	switch e.mode {
	case "api":
		r.PluginApiVersions = []string{"v9.0.0"}
	case "driver":
		r.Type = pluginpb.PluginType_DRIVER
	case "type":
		r.Type = 17
	case "name":
		r.Name = "../../etc/passwd"
	case "hang":
		<-ctx.Done()
	case "die":
		os.Exit(9)
	case "huge":
		r.Name = strings.Repeat("x", 17<<20)
	}
	return r, nil
}

func (e *evil) ConfigSchema(context.Context, *pluginpb.ConfigSchemaRequest) (*pluginpb.ConfigSchemaResponse, error) {
	return &pluginpb.ConfigSchemaResponse{}, nil
}

func (e *evil) SetConfig(context.Context, *pluginpb.SetConfigRequest) (*pluginpb.SetConfigResponse, error) {
	return &pluginpb.SetConfigResponse{}, nil
}

func (e *evil) Fingerprint(_ *devicepb.FingerprintRequest, s grpc.ServerStreamingServer[devicepb.FingerprintResponse]) error {
	switch e.mode {
	case "flood":
		for i := 0; ; i++ {
			if err := s.Send(&devicepb.FingerprintResponse{DeviceGroup: []*devicepb.DeviceGroup{{Vendor: "v", DeviceType: "t", DeviceName: fmt.Sprint(i)}}}); err != nil {
				return err
			}
		}
	case "hugestream":
		return s.Send(&devicepb.FingerprintResponse{DeviceGroup: []*devicepb.DeviceGroup{{Vendor: strings.Repeat("x", 17<<20)}}})
	case "broken":
		return errors.New("no idea")
	case "disabled":
		return errors.New("device is not enabled")
	case "twice":
		g := &devicepb.DeviceGroup{Vendor: "v", DeviceType: "t", DeviceName: "n"}
		if err := s.Send(&devicepb.FingerprintResponse{DeviceGroup: []*devicepb.DeviceGroup{g, g}}); err != nil {
			return err
		}
	case "end":
		return nil
	}
	<-s.Context().Done() // says nothing
	return s.Context().Err()
}

func (e *evil) Reserve(ctx context.Context, _ *devicepb.ReserveRequest) (*devicepb.ReserveResponse, error) {
	switch e.mode {
	case "flood":
		return &devicepb.ReserveResponse{ContainerRes: &devicepb.ContainerReservation{Envs: map[string]string{"A": strings.Repeat("x", 2<<20)}}}, nil
	case "broken":
		return nil, errors.New("rpc error: \xff broken")
	}
	return &devicepb.ReserveResponse{}, nil
}

func (e *evil) Stats(_ *devicepb.StatsRequest, s grpc.ServerStreamingServer[devicepb.StatsResponse]) error {
	for e.mode == "flood" {
		if err := s.Send(&devicepb.StatsResponse{}); err != nil {
			return err
		}
	}
	<-s.Context().Done()
	return s.Context().Err()
}

// A program that is no plugin of devices is an error that says what it did;
// nothing of it is left.
func TestHostileHandshake(t *testing.T) {
	for mode, want := range map[string]string{
		"garbage": "error parsing core protocol version",
		"exit":    `it ended with exit status 3; its last words: "no card"`,
		"version": "incompatible API version",
		"endless": "Unrecognized remote plugin message",
		"api":     "we speak v0.1.0", "driver": "it is of type DRIVER", "type": "it is of type 17", "name": `name "../../etc/passwd"`,
		"die": "it ended: exit status 9", "huge": "larger than max",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			l, _ := launch(t, "h-"+mode)
			_, err := deviceplugin.Launch(bounded(t), self(t), l)
			require.ErrorIs(t, err, deviceplugin.ErrLaunch)
			require.ErrorContains(t, err, want)
			require.Less(t, len(err.Error()), 4000)
			require.NoDirExists(t, l.Dir)
		})
	}
}

// One that says nothing is waited for no longer than the caller wants.
func TestHostileSilence(t *testing.T) {
	for _, mode := range []string{"silent", "hang"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			l, _ := launch(t, "h-"+mode)
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			began := time.Now()
			_, err := deviceplugin.Launch(ctx, self(t), l)
			require.ErrorIs(t, err, deviceplugin.ErrLaunch)
			require.Less(t, time.Since(began), 10*time.Second)
			require.NoDirExists(t, l.Dir)
		})
	}
}

// Streams without end take neither memory nor the processor, and end when asked;
// an answer that is too large to be kept is refused.
func TestHostileFloods(t *testing.T) {
	p, _ := start(t, "h-flood", "")
	d, ctx := p.Device(), bounded(t)
	own, cancel := context.WithCancel(ctx)
	fps, err := d.Fingerprint(own)
	require.NoError(t, err)
	stats, err := d.Stats(own, time.Second)
	require.NoError(t, err)
	n, over := 0, time.After(500*time.Millisecond)
	for open := true; open; {
		select {
		case <-fps:
			n++
		case <-stats:
			n++
		case <-over:
			open = false
		}
	}
	require.Less(t, n, 2*200, "a burst, then no more than one in 20 ms each")
	cancel()
	for range fps {
	}
	for range stats {
	}
	_, err = d.Reserve(ctx, []string{"x"})
	require.ErrorContains(t, err, "at most 1048576")
}

func TestHostileAnswers(t *testing.T) {
	for mode, want := range map[string]string{
		"broken": "no idea", "hugestream": "larger than max", "disabled": "device: plugin is disabled", "twice": "is there twice",
		"end": "the plugin ended the stream", "service": "unknown service",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			p, _ := start(t, "h-"+mode, "")
			ctx, cancel := context.WithCancel(bounded(t))
			fps, err := p.Device().Fingerprint(ctx)
			require.NoError(t, err)
			require.ErrorContains(t, (<-fps).Err, want)
			r, err := p.Device().Reserve(ctx, nil)
			if mode == "broken" || mode == "service" {
				require.Error(t, err)
			} else {
				require.NoError(t, err)
			}
			require.Empty(t, r)
			stats, err := p.Device().Stats(ctx, time.Second)
			require.NoError(t, err)
			if mode == "service" {
				require.Error(t, (<-stats).Err)
			}
			cancel()
			for range fps {
			}
			for range stats {
			}
		})
	}
}
