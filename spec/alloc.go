// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package spec says what a host wants its node to run: allocs and the tasks in
// them, as plain data. It holds no behaviour but validation and JSON.
//
//	Alloc                one unit of placed work: a directory, a network, a fate
//	 ├─ Tasks[]          what drivers run
//	 │   ├─ Config       the driver's own configuration (JSON, strings are templates)
//	 │   ├─ Restart      what happens after an exit
//	 │   ├─ Lifecycle    when it runs: before, beside or after the main tasks
//	 │   └─ Resources, Env, Logs, Templates, Artifacts, Services, …
//	 └─ Networks, Volumes, Services, …   what the tasks share
//
// Values are read by many goroutines and must not be changed once handed over.
package spec

import (
	"time"
)

// DesiredStatus is what the control plane wants of an alloc.
type DesiredStatus string

// The desired statuses. The empty string means DesiredRun.
const (
	DesiredRun   DesiredStatus = "run"   // it should run
	DesiredStop  DesiredStatus = "stop"  // it should be stopped and kept for inspection
	DesiredEvict DesiredStatus = "evict" // like stop, to make room for others
)

// JobType decides whether a main task that ended well is started again.
type JobType string

// The job types. The empty string means JobService.
const (
	JobService  JobType = "service"  // runs for ever; exit 0 restarts
	JobBatch    JobType = "batch"    // runs to completion
	JobSystem   JobType = "system"   // a service on every node; does not wait for first contact
	JobSysbatch JobType = "sysbatch" // a batch on every node; follows batch in all else
)

// Batch says whether main tasks of this type are done when they exit 0.
func (t JobType) Batch() bool { return t == JobBatch || t == JobSysbatch }

// DeploymentStatus is how the deployment stands that an alloc belongs to, as far
// as a node must know.
type DeploymentStatus string

// The deployment statuses. The empty string means DeploymentRunning.
const (
	DeploymentRunning    DeploymentStatus = "running"    // health is still asked for
	DeploymentSuccessful DeploymentStatus = "successful" // health is settled for good
	DeploymentFailed     DeploymentStatus = "failed"     // likewise
)

// Health is what was found out about an alloc, once per deployment.
type Health struct {
	Healthy    bool      `json:"healthy"`
	Time       time.Time `json:"time"`
	Reason     string    `json:"reason,omitempty"`     // for people
	Deployment string    `json:"deployment,omitempty"` // the DeploymentID it was found out for
}

// Alloc is one unit of placed work. ID, Group and Tasks are required.
type Alloc struct {
	ID        string  `json:"id"`   // unique for ever; a path element (see CheckName)
	Name      string  `json:"name"` // for people, such as "web.api[0]"; default "<job>.<group>[<index>]"
	JobID     string  `json:"job_id"`
	JobName   string  `json:"job_name,omitempty"` // default JobID
	JobType   JobType `json:"job_type"`
	Group     string  `json:"group"`
	Index     int     `json:"index"` // of this alloc among its group's
	Namespace string  `json:"namespace"`

	Region        string `json:"region"`
	Datacenter    string `json:"datacenter"`
	ParentJobID   string `json:"parent_job_id,omitempty"`
	DeploymentID  string `json:"deployment_id,omitempty"`
	PreviousAlloc string `json:"previous_alloc,omitempty"` // the alloc this one replaces
	Canary        bool   `json:"canary,omitempty"`         // one that tries a new version out

	DeploymentStatus DeploymentStatus `json:"deployment_status,omitempty"`

	DesiredStatus DesiredStatus `json:"desired_status"`
	DesiredReason string        `json:"desired_reason,omitempty"`
	CreateIndex   uint64        `json:"create_index"`
	ModifyIndex   uint64        `json:"modify_index"` // grows with every change; in the space of Desired.Index
	CreateTime    time.Time     `json:"create_time"`

	Tasks    []Task            `json:"tasks"`
	JobMeta  map[string]string `json:"job_meta,omitempty"`
	Meta     map[string]string `json:"meta,omitempty"` // the group's
	Networks []Network         `json:"networks,omitempty"`
	Ports    []PortMapping     `json:"ports,omitempty"` // as chosen by the scheduler
	Services []Service         `json:"services,omitempty"`
	Volumes  map[string]Volume `json:"volumes,omitempty"`

	Settings AllocSettings `json:"settings"`
}

// AllocSettings is how an alloc as a whole behaves.
type AllocSettings struct {
	ShutdownDelay time.Duration  `json:"shutdown_delay,omitempty"` // ns; between leaving the registry and the first kill
	MaxRun        time.Duration  `json:"max_run,omitempty"`        // ns; 0 is no limit; from CreateTime
	LostContact   LostContact    `json:"lost_contact"`
	Disk          EphemeralDisk  `json:"disk"`
	Health        *HealthPolicy  `json:"health,omitempty"`     // nil: health is not watched
	Reschedule    map[string]any `json:"reschedule,omitempty"` // the scheduler's; carried, not read
}

// LifecycleHook names the stage of an alloc's life a task belongs to.
type LifecycleHook string

// The stages. The empty string is a main task.
const (
	LifecycleMain      LifecycleHook = ""
	LifecyclePrestart  LifecycleHook = "prestart"
	LifecyclePoststart LifecycleHook = "poststart"
	LifecyclePoststop  LifecycleHook = "poststop"
)

// Lifecycle places a task in its alloc's life. A sidecar runs as long as the
// main tasks do; any other prestart or poststart task runs once to its end.
type Lifecycle struct {
	Hook    LifecycleHook `json:"hook"`
	Sidecar bool          `json:"sidecar,omitempty"`
}
