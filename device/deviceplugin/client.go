// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package deviceplugin

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/device/deviceplugin/devicepb"
	"github.com/nodekeep/nodekeep/internal/pluginwire"
)

// maxReservation is the largest answer to Reserve that is taken: it is kept as long
// as the task lives.
const maxReservation = 1 << 20

// disabled ends the text of an error that is final: all that plugins and agents of
// other origin have to tell it by.
const disabled = "device is not enabled"

// remote is a plugin in its own process.
type remote struct {
	rpc  devicepb.DevicePluginClient
	info device.Info
	done <-chan struct{} // the process has ended
	stop chan struct{}   // closed when we let go of it
	work sync.WaitGroup
}

// gone says whether the process has ended; the news may be a moment behind.
func (r *remote) gone() bool {
	t := time.NewTimer(goneWait)
	defer t.Stop()
	select {
	case <-r.done:
	case <-r.stop: // also when it has ended: then the other case may come second
	case <-t.C:
	}
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// failure is an error of a call as the contract has it. ctx is the call's.
func (r *remote) failure(ctx context.Context, err error) error {
	err = pluginwire.Error(ctx, err, r.gone)
	if err != nil && strings.Contains(err.Error(), disabled) {
		err = fmt.Errorf("%w: %w", device.ErrDisabled, err)
	}
	return err
}

// close ends what runs here; the connection must be closed by then.
func (r *remote) close() {
	close(r.stop)
	r.work.Wait()
}

// Info implements device.Plugin.
func (r *remote) Info() device.Info { return r.info }

// Fingerprint implements device.Plugin. The last value says why the stream ended.
func (r *remote) Fingerprint(ctx context.Context) (<-chan device.Fingerprint, error) {
	stream, err := r.rpc.Fingerprint(ctx, &devicepb.FingerprintRequest{})
	if err != nil {
		return nil, r.failure(ctx, err)
	}
	out := make(pluginwire.Latest[device.Fingerprint], 1)
	r.work.Go(func() {
		defer close(out)
		var slow pluginwire.Limiter
		for {
			m, err := stream.Recv()
			if err != nil {
				if err = r.failure(ctx, err); ctx.Err() == nil {
					out.Put(device.Fingerprint{Err: err})
				}
				return
			}
			out.Put(fingerprintFrom(m))
			slow.Wait(stream.Context())
		}
	})
	return out, nil
}

// Reserve implements device.Plugin.
func (r *remote) Reserve(ctx context.Context, ids []string) (device.Reservation, error) {
	resp, err := r.rpc.Reserve(ctx, &devicepb.ReserveRequest{DeviceIds: ids})
	if err != nil {
		return device.Reservation{}, r.failure(ctx, err)
	}
	if n := proto.Size(resp); n > maxReservation {
		return device.Reservation{}, fmt.Errorf("deviceplugin: %s reserves with %d bytes, at most %d", r.info.Name, n, maxReservation)
	}
	return reservationFrom(resp), nil
}

// Stats implements device.Plugin. What is wrong comes with the last value.
func (r *remote) Stats(ctx context.Context, interval time.Duration) (<-chan device.Stats, error) {
	if interval <= 0 {
		interval = time.Second
	}
	stream, err := r.rpc.Stats(ctx, &devicepb.StatsRequest{CollectionInterval: durationpb.New(interval)})
	if err != nil {
		return nil, r.failure(ctx, err)
	}
	out := make(pluginwire.Latest[device.Stats], 1)
	r.work.Go(func() {
		defer close(out)
		var slow pluginwire.Limiter
		for {
			m, err := stream.Recv()
			if err != nil {
				if err = r.failure(ctx, err); ctx.Err() == nil {
					out.Put(device.Stats{Err: err})
				}
				return
			}
			out.Put(statsFrom(m))
			slow.Wait(stream.Context())
		}
	})
	return out, nil
}
