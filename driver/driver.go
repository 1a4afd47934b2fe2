// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package driver is the contract between a task runner and whatever executes
// tasks. It imports the standard library only.
//
// A task's life as a driver sees it; every call may be repeated after a crash:
//
//	Start(cfg) ──▶ running ──(exits)──▶ exited ──▶ Destroy(ref)
//	                 │  ▲                  │
//	              Stop  Recover(handle)   Wait: any number of callers, before and
//	                                      after the exit, until Destroy
//
// Driver is what every driver must have. What only some can do is an interface
// of its own (Preparer, Signaler, Execer, Meter, …) that the runner asks for.
package driver

import (
	"context"
	"encoding/json"
	"time"
)

// Driver starts and supervises tasks. All methods are safe for concurrent use
// and idempotent per task ID.
type Driver interface {
	// Info returns what never changes while the driver lives. It does not block.
	Info() Info

	// Fingerprint streams the driver's health: the first value at once, later
	// ones on change only. The channel is closed when ctx ends.
	Fingerprint(ctx context.Context) (<-chan Fingerprint, error)

	// Start starts a task and returns once it runs. With
	// Capabilities.IdempotentStart a second Start of the same ID returns the first
	// one's handle; without, it is ErrTaskExists. A failed Start leaves nothing. An
	// error wrapped by Recoverable follows the restart policy, others are final.
	Start(ctx context.Context, cfg TaskConfig) (*Handle, error)

	// Recover makes a task of an earlier driver or agent known again. It returns
	// ErrTaskNotFound when the process of the handle is provably gone or another
	// one; a task that ended meanwhile is recovered, and Wait tells how it ended.
	Recover(ctx context.Context, h *Handle) error

	// Wait blocks until the task has exited and all it wrote is on file. The
	// error says that the exit cannot be learned (ErrTaskNotFound, ErrUnavailable,
	// ErrPluginGone, or the cause of ctx), never how the task ended.
	Wait(ctx context.Context, taskID string) (ExitResult, error)

	// Stop sends the signal to the main process and, when grace is over, SIGKILL
	// to all of the task. It returns once the task has exited; when ctx ends
	// earlier the escalation goes on. A task that has ended is no error.
	Stop(ctx context.Context, taskID string, signal string, grace time.Duration) error

	// Destroy forgets the task and leaves nothing of it: no process, cgroup, mount
	// or file. Without force a task that still runs is ErrTaskRunning. A task the
	// driver does not know is destroyed by what ref proves (handle, cgroup); with
	// no proof it is ErrTaskNotFound.
	Destroy(ctx context.Context, ref TaskRef, force bool) error
}

// Preparer is a driver that has slow things to do before a task can start, such
// as downloading an image. Called after the last prestart hook; cancellable.
type Preparer interface {
	Prepare(ctx context.Context, cfg TaskConfig, emit func(Event)) error
}

// Signaler is a driver with Capabilities.SendSignals.
type Signaler interface {
	// Signal sends the named signal to the main process; the driver validates the
	// name (ErrUnknownSignal with the list) and sends nothing in its place.
	Signal(ctx context.Context, taskID, signal string) error
}

// Inspector is a driver that can say more about a task than its handle does.
type Inspector interface {
	Inspect(ctx context.Context, taskID string) (TaskStatus, error)
}

// Info is what a driver says of itself.
type Info struct {
	Name         string // as jobs name it
	Version      string
	Capabilities Capabilities
	TaskSchema   *Schema // of Task.Config; nil accepts no configuration
	ConfigSchema *Schema // of the operator's configuration; nil takes none
}

// Capabilities are what a runner must know before it can use a driver.
type Capabilities struct {
	SendSignals     bool
	Exec            bool
	IdempotentStart bool // Start of a known ID returns its handle
	CollectsLogs    bool // the driver brings logs to the files itself; no FIFO is made
	RemountSecrets  bool // tasks see the alloc's directories at paths of their own (FSIsolation not none)
	FSIsolation     FSIsolation
	NetIsolation    []string // of host, group, task, none
	MustInitNetwork bool     // the driver makes the alloc's network namespace
	NoMounts        bool     // volumes and device mounts cannot be given
	DynamicUsers    bool     // TaskConfig.User may be a uid that no user of the host has
}

// FSIsolation is what of the host's file system a task sees.
type FSIsolation string

// The isolations; the empty string is FSNone.
const (
	FSNone   FSIsolation = "none"   // all of it: paths are the host's
	FSChroot FSIsolation = "chroot" // a root of its own made of host directories
	FSImage  FSIsolation = "image"  // an image's
	FSUnveil FSIsolation = "unveil" // the host's, hidden but for a list
)

// HealthState is a driver's health.
type HealthState string

// The health states.
const (
	Undetected HealthState = "undetected" // not usable on this host
	Unhealthy  HealthState = "unhealthy"  // here, but broken now
	Healthy    HealthState = "healthy"
)

// Fingerprint is one sample of a driver's health and the node attributes it
// contributes ("driver.<name>", "driver.<name>.version", …).
type Fingerprint struct {
	Health      HealthState
	Description string
	Attributes  map[string]string
}

// TaskConfig is one attempt of a task, complete: a driver needs nothing else.
type TaskConfig struct {
	ID      string // "<alloc>/<task>/<attempt>": the same whenever the step is repeated
	Name    string
	Owner   Owner
	Env     []string        // complete, sorted, "K=V"
	DevEnv  []string        // those of Env that devices brought
	User    string          // as the job says; "" is the driver's default
	Config  json.RawMessage // decoded against TaskSchema: an object with every attribute present
	Dirs    Dirs
	Stdio   Stdio
	Scope   string // name of the supervisor scope the task belongs to
	Cgroup  string // the task's own cgroup, made by the runner; "" is none
	Res     Resources
	Mounts  []Mount
	Devices []Device
	Ports   []Port // of the alloc
	DNS     *DNS
	Network *Network // nil is the host's
}

// Owner says for whom a task runs.
type Owner struct {
	AllocID, Task, Group string
	JobID, JobName       string
	ParentJobID          string // of a dispatched or periodic job
	Namespace, Region    string
	NodeID, NodeName     string
	Attempt              int
}

// Dirs are the host paths of a task's directories.
type Dirs struct {
	Alloc   string // the alloc's shared directory (alloc/)
	Task    string // the task's own root, parent of local/ and secrets/
	Local   string
	Secrets string
	Logs    string
}

// Stdio are the host paths of the task's output FIFOs, which whoever forks the
// task opens (ours O_RDWR, so that no SIGPIPE can happen). Empty discards.
type Stdio struct{ Stdout, Stderr string }

// Resources are the limits of a task, for drivers that enforce them.
type Resources struct {
	CPU       int64 // MHz, a share
	Cores     []int // concrete core ids, exclusively the task's
	MemoryMB  int64 // reserve
	MemoryMax int64 // MB; 0 is MemoryMB
}

// Mount makes a host path visible in the task.
type Mount struct {
	Source, Target string
	ReadOnly       bool
	Propagation    string // private (default), host-to-task, bidirectional
	SELinux        string // z, Z or nothing
	Volume         string // the group's name of the volume, if it is one
}

// Port is one of the alloc's ports.
type Port struct {
	Label  string
	HostIP string
	Value  int // on the host
	To     int // inside the network namespace; 0 is Value
}

// Device makes a device node of the host usable in the task.
type Device struct {
	HostPath, TaskPath string
	Permissions        string // of r, w, m
}

// DNS is the resolver configuration of the task's network.
type DNS struct{ Servers, Searches, Options []string }

// Network is the namespace a task joins.
type Network struct {
	Mode   string            // host, group, task, none
	Path   string            // of the namespace, for drivers that join one
	Labels map[string]string // the driver's own, from CreateNetwork
	// Hostname and Address are the alloc's entry in its hosts file, once known.
	Hostname, Address string
}

// Handle is everything a driver needs to find a running task again. State is
// the driver's own, in a format it versions.
type Handle struct {
	Driver  string          `json:"driver"`
	TaskID  string          `json:"task_id"`
	Version int             `json:"version"`
	PID     int             `json:"pid,omitempty"` // of the main process as the host sees it; for people only
	State   json.RawMessage `json:"state,omitempty"`
	// Config is kept where the driver needs it to recover (external plugins).
	Config *TaskConfig `json:"config,omitempty"`
	// Network is set by drivers that bring the task its own address.
	Network *TaskNetwork `json:"network,omitempty"`
}

// TaskNetwork is the address a driver gave a task.
type TaskNetwork struct {
	IP            string         `json:"ip"`
	PortMap       map[string]int `json:"port_map,omitempty"`
	AutoAdvertise bool           `json:"auto_advertise,omitempty"`
}

// TaskRef names a task to Destroy, with all the proof the caller has.
type TaskRef struct {
	ID     string
	Handle *Handle // nil when no Start was seen to return
	Scope  string
	Cgroup string
}

// ExitResult is how a task ended. Code is the process's own; death by signal n
// is code 128+n and Signal n; an exit nobody saw is -1 with Err set, never 0.
type ExitResult struct {
	Code      int    `json:"code"`
	Signal    int    `json:"signal,omitempty"`
	OOMKilled bool   `json:"oom_killed,omitempty"`
	Err       string `json:"err,omitempty"`
}

// OK says that the task ended well.
func (r ExitResult) OK() bool { return r.Code == 0 && r.Signal == 0 && r.Err == "" && !r.OOMKilled }

// TaskStatus is what Inspector tells.
type TaskStatus struct {
	ID        string
	State     string // running, exited or unknown
	StartedAt time.Time
	ExitedAt  time.Time // zero while running
	Exit      *ExitResult
	// Attrs are the driver's own. Two are known to runners: "adopted" is "true" when
	// whoever started the task and kept the time of its stop has died meanwhile,
	// "output_lost" is when the last output of a task that has ended may be lost.
	Attrs map[string]string
}

// Event is something a driver tells a task's owner, such as a pull's progress.
type Event struct {
	TaskID  string
	AllocID string // with Task whom it is for
	Task    string
	Time    time.Time
	Message string
	Attrs   map[string]string
	Err     error
}
