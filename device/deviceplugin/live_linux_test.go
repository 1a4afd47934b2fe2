// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package deviceplugin_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/device/deviceplugin"
	"github.com/nodekeep/nodekeep/device/devicetest"
	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/driver"
)

func TestSuiteOverTheWire(t *testing.T) {
	p, _ := start(t, "fake", "")
	devicetest.Suite(t, devicetest.SuiteConfig{
		New: func(*testing.T) device.Plugin { return p.Device() },
		Renew: func(t *testing.T, _ device.Plugin) device.Plugin {
			next, _ := start(t, "fake", "")
			return next.Device()
		},
	})
}

// All of it arrives as it was sent.
func TestThroughTheWire(t *testing.T) {
	p, log := start(t, "fake", "")
	d, ctx := p.Device(), bounded(t)
	require.Equal(t, "fake", d.Info().Name)
	require.Equal(t, "1.0.0", d.Info().Version)
	require.Contains(t, d.Info().ConfigSchema.Attrs, "do")
	own, cancel := context.WithCancel(ctx)
	fps, err := d.Fingerprint(own)
	require.NoError(t, err)
	require.Equal(t, device.Fingerprint{Groups: fakeGroups()}, <-fps)
	r, err := d.Reserve(ctx, []string{"a", "b"})
	require.NoError(t, err)
	require.Equal(t, device.Reservation{Env: map[string]string{"FAKE_IDS": "a,b"},
		Mounts:  []driver.Mount{{Source: "/lib/a", Target: "/lib/a", ReadOnly: true}, {Source: "/lib/b", Target: "/lib/b", ReadOnly: true}},
		Devices: []driver.Device{{HostPath: "/dev/a", TaskPath: "/dev/a", Permissions: "rw"}, {HostPath: "/dev/b", TaskPath: "/dev/b", Permissions: "rw"}}}, r)
	stats, err := d.Stats(own, 0)
	require.NoError(t, err)
	st := <-stats
	require.NoError(t, st.Err)
	require.Equal(t, int64(1), *st.Groups[0].Instances["a"].Summary.Int)
	require.WithinDuration(t, time.Now(), st.Groups[0].Instances["a"].Time, time.Minute)

	// Errors are kept apart.
	_, err = d.Reserve(ctx, []string{"busy"})
	require.True(t, driver.IsRecoverable(err))
	require.EqualError(t, err, "busy")
	_, err = d.Reserve(ctx, []string{"none"})
	require.EqualError(t, err, `fake: unknown device "none"`)
	require.False(t, driver.IsRecoverable(err))
	_, err = d.Reserve(ctx, []string{"panic"})
	require.ErrorContains(t, err, "the device panicked in Reserve: ouch")
	short, end := context.WithTimeout(ctx, 50*time.Millisecond)
	defer end()
	_, err = d.Reserve(short, []string{"hang"})
	require.ErrorIs(t, err, context.DeadlineExceeded)

	// What it loses it still names, as long as it knows nothing better.
	_, err = d.Reserve(ctx, []string{"fail"})
	require.Error(t, err)
	fp := <-fps
	require.NoError(t, fp.Err)
	require.Equal(t, device.Instance{ID: "a", Description: "lost the card"}, fp.Groups[0].Instances[0])
	_, err = d.Reserve(ctx, []string{"disable"})
	require.Error(t, err)
	fp = <-fps
	require.ErrorIs(t, fp.Err, device.ErrDisabled)
	_, open := <-fps
	require.False(t, open)
	_, err = d.Reserve(ctx, []string{"log"})
	require.Error(t, err)
	cancel()
	for range stats {
	}
	require.NoError(t, p.Close(ctx))
	require.Regexp(t, `\[WARN\]  said: .*by=plugin`, log.String())
	require.Contains(t, log.String(), "printed")
	_, err = d.Reserve(ctx, []string{"a"})
	require.ErrorIs(t, err, driver.ErrPluginGone)
}

func TestConfigured(t *testing.T) {
	for config, want := range map[string]string{`{"do":"refuse"}`: "the plugin refuses its configuration: not with me", `{"what":1}`: "what"} {
		l, _ := launch(t, "fake")
		l.Config = json.RawMessage(config)
		_, err := deviceplugin.Launch(bounded(t), self(t), l)
		require.ErrorIs(t, err, deviceplugin.ErrLaunch)
		require.ErrorContains(t, err, want)
		require.NoDirExists(t, l.Dir)
	}
	p, _ := start(t, "fake", `{"do":"disabled"}`)
	fps, err := p.Device().Fingerprint(bounded(t))
	require.NoError(t, err)
	require.ErrorIs(t, (<-fps).Err, device.ErrDisabled)
	p, _ = start(t, "fake", `{"do":"fail"}`)
	fps, err = p.Device().Fingerprint(bounded(t))
	require.NoError(t, err)
	fp := <-fps
	require.EqualError(t, fp.Err, "the library is not there")
	p, _ = start(t, "fake", `{"do":"nostats"}`)
	stats, err := p.Device().Stats(bounded(t), time.Second)
	require.NoError(t, err)
	require.ErrorIs(t, (<-stats).Err, driver.ErrNotImplemented)
}

// A plugin that dies ends its streams and calls with the reason.
func TestDeath(t *testing.T) {
	p, _ := start(t, "fake", "")
	d, ctx := p.Device(), bounded(t)
	fps, err := d.Fingerprint(ctx)
	require.NoError(t, err)
	<-fps
	stats, err := d.Stats(ctx, time.Hour)
	require.NoError(t, err)
	<-stats
	_, err = d.Reserve(ctx, []string{"die"})
	require.ErrorIs(t, err, driver.ErrPluginGone)
	require.ErrorIs(t, (<-fps).Err, driver.ErrPluginGone)
	require.ErrorIs(t, (<-stats).Err, driver.ErrPluginGone)
	<-p.Done()
	require.Contains(t, p.How(), "exit status 7")
	if fps, err = d.Fingerprint(ctx); err == nil { // the call may be one that was only begun
		err = (<-fps).Err
	}
	require.ErrorIs(t, err, driver.ErrPluginGone)
}

// What an agent left that died is ended by the next.
func TestSweep(t *testing.T) {
	l, _ := launch(t, "fake")
	p, err := deviceplugin.Launch(bounded(t), self(t), l)
	require.NoError(t, err)
	dir := deviceplugin.Dir(t.TempDir())
	require.NoError(t, dir.Sweep(filepath.Join(t.TempDir(), "none")))
	require.NoError(t, dir.Sweep(filepath.Dir(l.Dir)))
	<-p.Done()
	require.ErrorIs(t, syscall.Kill(p.PID(), 0), syscall.ESRCH)
	require.NoDirExists(t, l.Dir)
	require.NoError(t, p.Close(bounded(t)))
}

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	d := deviceplugin.Dir(dir)
	for _, bad := range []string{"", "..", "../x", "/bin/sh"} {
		_, err := d.Launch(bounded(t), bad, devicemanager.Launch{Dir: filepath.Join(shortDir(t), "p")})
		require.ErrorContains(t, err, "is no name of a program")
	}
	require.NoError(t, syscall.Symlink(self(t), filepath.Join(dir, "mine")))
	list, err := d.List()
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "mine", list[0].Name)
	l, _ := launch(t, "fake")
	p, err := d.Launch(bounded(t), "mine", l)
	require.NoError(t, err)
	require.NoError(t, p.Close(bounded(t)))
	_, err = deviceplugin.Dir(string([]byte{0})).List()
	require.ErrorContains(t, err, "plugin directory")
	l, _ = launch(t, "h-driver")
	_, err = d.Launch(bounded(t), "mine", l)
	require.ErrorIs(t, err, devicemanager.ErrOtherKind)
	require.ErrorIs(t, err, deviceplugin.ErrIdentity)
	require.True(t, strings.HasSuffix(err.Error(), "it is of type DRIVER, not DEVICE"), err.Error())
}
