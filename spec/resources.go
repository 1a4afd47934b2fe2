// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec

import "time"

// Resources is what a task may use. Zero fields take the defaults.
type Resources struct {
	CPU         int64            `json:"cpu"`                     // MHz; a share, default 100
	Cores       int              `json:"cores,omitempty"`         // how many the job asked for
	CoreIDs     []int            `json:"core_ids,omitempty"`      // which ones the scheduler chose
	MemoryMB    int64            `json:"memory_mb"`               // reserve, MiB; default 300
	MemoryMaxMB int64            `json:"memory_max_mb,omitempty"` // MiB; 0 is MemoryMB, -1 is no limit
	SecretsMB   int64            `json:"secrets_mb,omitempty"`    // MiB of the secrets tmpfs; default 1
	Devices     []DeviceRequest  `json:"devices,omitempty"`
	Numa        *Numa            `json:"numa,omitempty"`
	Networks    []Network        `json:"networks,omitempty"` // the legacy place of ports
	Granted     []DeviceInstance `json:"granted,omitempty"`  // device instances the scheduler chose
}

// DeviceRequest asks for instances of a device, named vendor/type/model from
// the right: "gpu", "nvidia/gpu" or "nvidia/gpu/1080ti".
type DeviceRequest struct {
	Name        string       `json:"name"`
	Count       int          `json:"count"` // default 1
	Constraints []Constraint `json:"constraints,omitempty"`
	Affinities  []Constraint `json:"affinities,omitempty"`
}

// DeviceInstance names granted instances of one device group.
type DeviceInstance struct {
	Vendor string   `json:"vendor"`
	Type   string   `json:"type"`
	Name   string   `json:"name"`
	IDs    []string `json:"ids"`
}

// Constraint is a placement rule; the scheduler's, carried and not read here
// but for devices. Weight is 0 in a constraint, -100…100 in an affinity.
type Constraint struct {
	Attribute string `json:"attribute,omitempty"`
	Operator  string `json:"operator,omitempty"` // default "="
	Value     string `json:"value,omitempty"`
	Weight    int    `json:"weight,omitempty"`
}

// Numa is how the scheduler picks cores and devices by NUMA node.
type Numa struct {
	Affinity string   `json:"affinity"` // none, prefer, require
	Devices  []string `json:"devices,omitempty"`
}

// Network is what a group asks of the network.
type Network struct {
	Mode     string            `json:"mode,omitempty"` // host (default), none, bridge, cni/<name>
	Hostname string            `json:"hostname,omitempty"`
	MBits    int               `json:"mbits,omitempty"` // legacy, carried
	Ports    []Port            `json:"ports,omitempty"`
	DNS      *DNS              `json:"dns,omitempty"`
	CNIArgs  map[string]string `json:"cni_args,omitempty"`
}

// Port is one labelled port. Static 0 is a dynamic one.
type Port struct {
	Label           string `json:"label"`
	Static          int    `json:"static,omitempty"`
	To              int    `json:"to,omitempty"` // inside the namespace; 0 is the same, -1 the host's dynamic one
	HostNetwork     string `json:"host_network,omitempty"`
	IgnoreCollision bool   `json:"ignore_collision,omitempty"`
}

// PortMapping is a port as the scheduler gave it to an alloc.
type PortMapping struct {
	Label  string `json:"label"`
	HostIP string `json:"host_ip"`
	Value  int    `json:"value"` // on the host
	To     int    `json:"to,omitempty"`
	Task   string `json:"task,omitempty"` // set for ports of a task's own (legacy)
}

// DNS is a resolver configuration.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// Volume is storage that a group makes available to its tasks.
type Volume struct {
	Name           string            `json:"name"`
	Type           string            `json:"type"` // host or csi (csi is refused at run)
	Source         string            `json:"source,omitempty"`
	ReadOnly       bool              `json:"read_only,omitempty"`
	AccessMode     string            `json:"access_mode,omitempty"`
	AttachmentMode string            `json:"attachment_mode,omitempty"`
	PerAlloc       bool              `json:"per_alloc,omitempty"`
	Sticky         bool              `json:"sticky,omitempty"`
	MountOptions   map[string]string `json:"mount_options,omitempty"`
}

// VolumeMount brings a volume into a task.
type VolumeMount struct {
	Volume          string `json:"volume"`
	Destination     string `json:"destination"`
	ReadOnly        bool   `json:"read_only,omitempty"`
	PropagationMode string `json:"propagation_mode,omitempty"` // private (default), host-to-task, bidirectional
	SELinuxLabel    string `json:"selinux_label,omitempty"`
}

// EphemeralDisk is the alloc's own disk: accounted, not enforced.
type EphemeralDisk struct {
	SizeMB  int64 `json:"size_mb"` // default 300
	Sticky  bool  `json:"sticky,omitempty"`
	Migrate bool  `json:"migrate,omitempty"`
}

// LostContact says what an alloc does when the control plane is silent.
type LostContact struct {
	// StopAfter, ns: stop that long after contact was lost; nil: keep running; 0: at once.
	StopAfter *time.Duration `json:"stop_after,omitempty"`
	Fence     bool           `json:"fence,omitempty"`   // the stop is enforced where the tasks are
	Replace   *bool          `json:"replace,omitempty"` // the scheduler's; carried, not read
}

// HealthPolicy says when an alloc counts as healthy.
type HealthPolicy struct {
	Check            string        `json:"check"`             // checks (default), task_states or manual
	MinHealthy       time.Duration `json:"min_healthy"`       // ns, default 10 s
	Deadline         time.Duration `json:"deadline"`          // ns, default 5 min
	ProgressDeadline time.Duration `json:"progress_deadline"` // ns, default 10 min; the scheduler's
}
