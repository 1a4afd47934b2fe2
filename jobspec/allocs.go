// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nodekeep/nodekeep/spec"
)

// AllocOptions is what a job file does not say. The zero value is good for a
// machine of one's own.
type AllocOptions struct {
	// Version tells one run of a job from another: it is part of the ids. "" is the
	// content of the group, so that the same file gives the same allocs, and only
	// the groups that changed get new ones.
	Version string
	// Datacenter is the node's; "" is the first of the job.
	Datacenter string
	Index      uint64    // CreateIndex and ModifyIndex
	Time       time.Time // CreateTime
}

// Allocs makes the allocs of all groups, Count of each, with every default
// filled in. Their ids follow from namespace, job, group, index and version and
// from nothing else: asking twice gives the same. An error is an alloc that
// Validate refuses; a job from Parse has none.
func (j *Job) Allocs(opts AllocOptions) ([]*spec.Alloc, error) {
	var all []*spec.Alloc
	for g := range j.Groups {
		if len(j.Groups[g].Alloc.Tasks) == 0 {
			continue
		}
		version := opts.Version
		if version == "" {
			version = j.content(&j.Groups[g])
		}
		for i := range j.Groups[g].Count {
			a := j.alloc(&j.Groups[g], i)
			a.ID = allocID(a.Namespace, a.JobID, a.Group, i, version)
			if opts.Datacenter != "" {
				a.Datacenter = opts.Datacenter
			}
			a.CreateIndex, a.ModifyIndex, a.CreateTime = opts.Index, opts.Index, opts.Time
			if err := a.Validate(); err != nil {
				return nil, fmt.Errorf("jobspec: group %q: %w", a.Group, err)
			}
			all = append(all, a)
		}
	}
	return all, nil
}

// alloc is the group's alloc of that index, without an id.
func (j *Job) alloc(g *Group, index int) *spec.Alloc {
	a := *g.Alloc
	a.Index = index
	return a.WithDefaults()
}

// content is a digest of what a group's allocs run: all but where it is written.
func (j *Job) content(g *Group) string {
	a := j.alloc(g, 0)
	for i := range a.Tasks {
		a.Tasks[i].Origin = nil
	}
	data, err := json.Marshal(a)
	if err != nil { // a config that is no JSON: Validate tells
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))
}

// allocID has the shape of a UUID and follows from what it is the id of.
func allocID(namespace, job, group string, index int, version string) string {
	h := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %d %q", namespace, job, group, index, version))
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[:4], h[4:6], h[6:8], h[8:10], h[10:16])
}
