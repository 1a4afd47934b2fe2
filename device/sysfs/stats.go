// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nodekeep/nodekeep/device"
)

// Stats implements device.Plugin: what the kernel's sensors of a device measure
// (temperatures, power), and whether it is powered.
func (p *Plugin) Stats(ctx context.Context, interval time.Duration) (<-chan device.Stats, error) {
	if interval <= 0 {
		interval = time.Second
	}
	cfg := p.config()
	out := make(chan device.Stats)
	go func() {
		defer close(out)
		t := time.NewTicker(interval)
		defer t.Stop()
		for {
			select {
			case out <- measure(&cfg):
			case <-ctx.Done():
				return
			}
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func measure(cfg *Config) (s device.Stats) {
	all, err := scan(cfg)
	if err != nil {
		return device.Stats{Err: err}
	}
	at := map[string]int{}
	now := time.Now()
	for _, f := range all {
		v, t, m := f.group()
		key := v + "\x00" + t + "\x00" + m
		n, ok := at[key]
		if !ok {
			n = len(s.Groups)
			at[key] = n
			s.Groups = append(s.Groups, device.GroupStats{Vendor: v, Type: t, Name: m, Instances: map[string]device.InstanceStats{}})
		}
		s.Groups[n].Instances[f.id] = sensors(f.dir, now)
	}
	return s
}

// kinds of sensors that hwmon has, by how their files begin.
var kinds = []struct {
	prefix, unit, text string
	scale              float64
}{
	{"temp", "°C", "Temperature", 1000},
	{"power", "W", "Power", 1e6},
	{"fan", "RPM", "Fan", 1},
}

func sensors(dir string, now time.Time) device.InstanceStats {
	out := device.InstanceStats{Time: now, Stats: &device.Object{Values: map[string]device.Value{}}}
	if state := attr(dir, "power/runtime_status"); state != "" {
		v := device.Value{Text: &state, Description: "Runtime power state"}
		out.Stats.Values["power_state"], out.Summary = v, &v
	}
	hwmons, _ := filepath.Glob(filepath.Join(dir, "hwmon", "hwmon*"))
	var hottest *device.Value
	for _, h := range hwmons {
		entries, _ := os.ReadDir(h)
		for _, e := range entries {
			name, reads := strings.CutSuffix(e.Name(), "_input")
			if !reads {
				name, reads = strings.CutSuffix(e.Name(), "_average")
			}
			raw, err := strconv.ParseFloat(attr(h, e.Name()), 64)
			if !reads || err != nil {
				continue
			}
			for _, k := range kinds {
				if !strings.HasPrefix(name, k.prefix) {
					continue
				}
				text := k.text
				if label := attr(h, name+"_label"); label != "" {
					text += " (" + label + ")"
				}
				x := raw / k.scale
				v := device.Value{Float: &x, Unit: k.unit, Description: text}
				out.Stats.Values[name] = v
				if k.prefix == "temp" && (hottest == nil || *hottest.Float < x) {
					hottest = &v
				}
			}
		}
	}
	if hottest != nil {
		out.Summary = hottest
	}
	return out
}
