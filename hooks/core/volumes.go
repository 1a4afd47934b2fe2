// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package core

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/account"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// HostVolume is a directory of this host that allocs may ask for by name.
type HostVolume struct {
	Path     string // absolute; must be a directory when a task starts
	ReadOnly bool   // whatever the alloc asks for
}

// HostVolumes are a node's, by name.
type HostVolumes map[string]HostVolume

// VolumeError says which volume of an alloc cannot be had, and why.
type VolumeError struct{ Volume, Reason string }

func (e *VolumeError) Error() string { return fmt.Sprintf("core: volume %q %s", e.Volume, e.Reason) }

// Check says whether the volumes of an alloc are there to be had: all faults at
// once, as VolumeError. It looks at no file.
func (v HostVolumes) Check(al *spec.Alloc) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(al.Volumes)) {
		_, err := v.find(al, name)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// find resolves a volume by the name that the alloc gives it.
func (v HostVolumes) find(al *spec.Alloc, name string) (HostVolume, error) {
	refuse := func(format string, args ...any) (HostVolume, error) {
		return HostVolume{}, &VolumeError{name, fmt.Sprintf(format, args...)}
	}
	vol, ok := al.Volumes[name]
	switch {
	case !ok:
		return refuse("is none of the group: declare it in a volume block")
	case vol.Type != "host":
		return refuse("is of type %q: only host volumes can be had on this node", vol.Type)
	}
	source := vol.Source
	if vol.PerAlloc {
		source = fmt.Sprintf("%s[%d]", source, al.Index)
	}
	host, ok := v[source]
	switch {
	case !ok && len(v) == 0:
		return refuse("needs the host volume %q, and this node has none", source)
	case !ok:
		return refuse("needs the host volume %q; this node has %s", source, strings.Join(slices.Sorted(maps.Keys(v)), ", "))
	case host.ReadOnly && !vol.ReadOnly:
		return refuse("is asked for to write, but the host volume %q is read-only: set read_only", source)
	}
	return host, nil
}

// volumes refuses an alloc before any of its tasks starts when a directory that it
// needs is not there. Tasks that run already go on: it is looked for again.
func volumes(v HostVolumes) allocrunner.HookFunc {
	return func(al *spec.Alloc) (allocrunner.AnyHook, error) {
		if len(al.Volumes) == 0 {
			return nil, nil
		}
		return &allocrunner.Hook[none]{
			Name: "volumes", Stage: allocrunner.StageVolumes,
			Prerun: func(_ context.Context, r *allocrunner.Request, _ *none) (err error) {
				defer func() {
					if err != nil && r.Restored {
						err = driver.Recoverable(err)
					}
				}()
				for _, name := range slices.Sorted(maps.Keys(r.Alloc.Volumes)) {
					host, err := v.find(r.Alloc, name)
					if err != nil {
						return err
					}
					if fi, err := os.Stat(host.Path); err != nil || !fi.IsDir() {
						return &VolumeError{name, fmt.Sprintf("cannot be had: %s is no directory on this host", host.Path)}
					}
				}
				return nil
			},
		}, nil
	}
}

// mounts brings the volumes that a task mounts to its driver, at every start.
func mounts(v HostVolumes) taskrunner.HookFunc {
	return func(_ *spec.Alloc, t *spec.Task) (taskrunner.AnyHook, error) {
		if len(t.Attach.Mounts) == 0 {
			return nil, nil
		}
		return &taskrunner.Hook[none]{
			Name: "mounts", Stage: taskrunner.StageMounts,
			Prestart: func(_ context.Context, r *taskrunner.Request, _ *none) (c taskrunner.Contribution, err error) {
				if r.Driver.Capabilities.NoMounts {
					return c, fmt.Errorf("core: driver %q mounts no volumes: use one that does, or drop volume_mount", r.Driver.Name)
				}
				for _, m := range r.Task.Attach.Mounts {
					host, err := v.find(r.Alloc, m.Volume)
					switch {
					case err != nil && r.Restored: // it runs: what it has mounted stays as it is
						continue
					case err != nil:
						return c, err
					}
					c.Mounts = append(c.Mounts, driver.Mount{
						Source: host.Path, Target: m.Destination, Volume: m.Volume, Propagation: m.PropagationMode, SELinux: m.SELinuxLabel,
						ReadOnly: m.ReadOnly || host.ReadOnly || r.Alloc.Volumes[m.Volume].ReadOnly,
					})
				}
				return c, nil
			},
		}, nil
	}
}

// sent is what the payload hook remembers.
type sent struct {
	Done bool `json:"done,omitempty"` // the file is there, or was: it is the task's now
}

// payload writes what a job was dispatched with into the task's local directory,
// once.
func payload(cfg Config, book *account.Book) taskrunner.HookFunc {
	return func(_ *spec.Alloc, t *spec.Task) (taskrunner.AnyHook, error) {
		if t.Attach.Payload == nil {
			return nil, nil
		}
		return &taskrunner.Hook[sent]{
			Name: "payload", Stage: taskrunner.StagePayload,
			Prestart: func(ctx context.Context, r *taskrunner.Request, s *sent) (c taskrunner.Contribution, err error) {
				p := r.Task.Attach.Payload
				if s.Done || r.Restored || p == nil || len(p.Payload) == 0 { // nothing was sent along
					return c, nil
				}
				dir, err := cfg.Dir(r.Alloc.ID)
				if err != nil {
					return c, err
				}
				owner, err := ownerOf(cfg.Users, book, r)
				if err != nil {
					return c, err
				}
				err = dir.PutFile(ctx, r.Task.Name, p.File, p.Payload, 0o640, allocdir.TaskOptions{UID: owner.UID, GID: owner.GID})
				s.Done = err == nil
				return c, err
			},
		}, nil
	}
}
