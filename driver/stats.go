// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"time"
)

// Meter is a driver that can say what a task uses.
type Meter interface {
	// Stats streams samples of a task: the first one at once, then one at each
	// interval (0 is a second). The channel is closed when ctx ends, when the task
	// has ended, or when the driver can say no more; ask again then. A reader that
	// is slow skips samples. ErrTaskNotFound and ErrNotImplemented come at once.
	Stats(ctx context.Context, taskID string, interval time.Duration) (<-chan Usage, error)
}

// Usage is what a task used at one time. What the kernel or the driver does not
// tell is missing in Measured and zero or nil here.
type Usage struct {
	Time     time.Time   `json:"time"`
	Memory   MemoryUsage `json:"memory"`
	CPU      CPUUsage    `json:"cpu"`
	IO       *IOUsage    `json:"io,omitempty"`
	Pressure *Pressure   `json:"pressure,omitempty"`
	Pids     int         `json:"pids"`    // processes
	Threads  int         `json:"threads"` // of all of them
}

// MemoryUsage is in bytes.
type MemoryUsage struct {
	Usage        uint64 `json:"usage"`       // all that is charged to the task, cache included
	RSS          uint64 `json:"rss"`         // anonymous memory
	Cache        uint64 `json:"cache"`       // files' pages, which the kernel can drop
	Swap         uint64 `json:"swap"`        //
	MappedFile   uint64 `json:"mapped_file"` // of the cache, what is mapped
	Max          uint64 `json:"max"`         // the highest Usage so far
	Kernel       uint64 `json:"kernel"`      // the kernel's own on the task's behalf
	KernelMax    uint64 `json:"kernel_max"`
	Allocated    uint64 `json:"allocated"`     // what the job reserves
	AllocatedMax uint64 `json:"allocated_max"` // what it may use when there is room
	// Measured are the names, as in JSON, of the fields that were measured.
	Measured []string `json:"measured,omitempty"`
}

// CPUUsage counts from the start of the task; percentages are of one core since
// the sample before, and 0 in the first.
type CPUUsage struct {
	Percent          float64       `json:"percent"`
	UserPercent      float64       `json:"user_percent"`
	SystemPercent    float64       `json:"system_percent"`
	User             time.Duration `json:"user_ns"`
	System           time.Duration `json:"system_ns"`
	ThrottledPeriods uint64        `json:"throttled_periods"`
	ThrottledTime    time.Duration `json:"throttled_ns"`
	Ticks            float64       `json:"ticks"` // MHz used, of cores at their nominal speed
	// Measured are the names, as in JSON, of the fields that were measured.
	Measured []string `json:"measured,omitempty"`
}

// IOUsage is of block devices, since the start of the task.
type IOUsage struct {
	ReadBytes  uint64 `json:"read_bytes"`
	WriteBytes uint64 `json:"write_bytes"`
	ReadOps    uint64 `json:"read_ops"`
	WriteOps   uint64 `json:"write_ops"`
}

// Pressure is how long the task's processes had to wait (the kernel's PSI).
type Pressure struct {
	CPU    *Stall `json:"cpu,omitempty"`
	Memory *Stall `json:"memory,omitempty"`
	IO     *Stall `json:"io,omitempty"`
}

// Stall tells when some, and when all, of the processes waited.
type Stall struct {
	Some StallTime `json:"some"`
	Full StallTime `json:"full"`
}

// StallTime holds the percent of the last 10, 60 and 300 seconds, and the sum.
type StallTime struct {
	Avg10  float64       `json:"avg10"`
	Avg60  float64       `json:"avg60"`
	Avg300 float64       `json:"avg300"`
	Total  time.Duration `json:"total_ns"`
}
