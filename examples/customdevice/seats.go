// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/driver"
)

// period is the time between two looks at the directory.
const period = 5 * time.Second

// seats finds seats of licences: a file <product>-<number>.seat is one.
type seats struct {
	mu  sync.Mutex
	dir string
}

// Info says who the plugin is and what the operator may configure.
func (*seats) Info() device.Info {
	return device.Info{Name: "seats", Version: "0.1.0", ConfigSchema: driver.Object(map[string]*driver.Schema{
		"dir": driver.Default(driver.Attr("string", false), `"/etc/seats"`),
	})}
}

// Configure takes the directory. What does not fit the schema never gets here.
func (s *seats) Configure(_ context.Context, config json.RawMessage) error {
	var cfg struct{ Dir string }
	if err := json.Unmarshal(config, &cfg); err != nil {
		return fmt.Errorf("seats: configuration: %w", err)
	}
	if !filepath.IsAbs(cfg.Dir) {
		return fmt.Errorf("seats: dir is %q: must be an absolute path", cfg.Dir)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dir = cfg.Dir
	return nil
}

func (s *seats) directory() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dir
}

// look lists all seats: a group for each product.
func (s *seats) look() ([]device.Group, error) {
	files, err := os.ReadDir(s.directory())
	if err != nil {
		return nil, fmt.Errorf("seats: %w", err)
	}
	groups := map[string]*device.Group{}
	for _, f := range files {
		id, isSeat := strings.CutSuffix(f.Name(), ".seat")
		product, _, numbered := strings.Cut(id, "-")
		if !isSeat || !numbered {
			continue
		}
		g := groups[product]
		if g == nil {
			g = &device.Group{Vendor: "acme", Type: "seat", Name: product, Attributes: map[string]device.Attribute{}}
			groups[product] = g
		}
		seat := device.Instance{ID: id, Healthy: true}
		if info, err := f.Info(); err != nil || info.Size() == 0 {
			seat.Healthy, seat.Description = false, "the seat's file is empty"
		}
		g.Instances = append(g.Instances, seat)
	}
	all := []device.Group{}
	for _, g := range groups {
		g.Attributes["seats"] = device.Int(int64(len(g.Instances)), "")
		all = append(all, *g)
	}
	slices.SortFunc(all, func(a, b device.Group) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// Fingerprint tells what there is at once, and again when it has changed.
func (s *seats) Fingerprint(ctx context.Context) (<-chan device.Fingerprint, error) {
	out := make(chan device.Fingerprint)
	go func() {
		defer close(out)
		var last []device.Group
		for first := true; ; first = false {
			groups, err := s.look()
			if first || err != nil || !reflect.DeepEqual(last, groups) {
				select {
				case out <- device.Fingerprint{Groups: groups, Err: err}:
					last = groups
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-time.After(period):
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// Reserve says what a task needs to use its seats. The node sees to it that no
// other task has them; nothing is to be counted here.
func (s *seats) Reserve(_ context.Context, ids []string) (device.Reservation, error) {
	groups, err := s.look()
	if err != nil {
		return device.Reservation{}, driver.Recoverable(err)
	}
	r := device.Reservation{Env: map[string]string{"SEATS": strings.Join(ids, ",")}}
	for _, id := range ids {
		if !slices.ContainsFunc(groups, func(g device.Group) bool {
			return slices.ContainsFunc(g.Instances, func(in device.Instance) bool { return in.ID == id })
		}) {
			return device.Reservation{}, fmt.Errorf("seats: there is no seat %q", id)
		}
		file := filepath.Join(s.directory(), id+".seat")
		r.Mounts = append(r.Mounts, driver.Mount{Source: file, Target: file, ReadOnly: true})
	}
	return r, nil
}

// Stats measures nothing.
func (*seats) Stats(context.Context, time.Duration) (<-chan device.Stats, error) {
	return nil, errors.Join(errors.New("seats: nothing is measured"), driver.ErrNotImplemented)
}
