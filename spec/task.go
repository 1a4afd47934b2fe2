// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"encoding/json"
	"time"
)

// Task is one thing a driver runs. Name and Driver are required; every other
// field has a default that suits a plain program.
type Task struct {
	Name   string `json:"name"`   // a path element (see CheckName)
	Driver string `json:"driver"` // as the driver reports it, such as "raw_exec"

	// Config is the driver's own configuration: a JSON object whose strings may
	// hold ${…}, in which repeated blocks are lists. It is decoded against the
	// driver's schema at each start.
	Config json.RawMessage `json:"config,omitempty"`
	// Origin maps a dotted path in Config to where it was written, for messages.
	Origin map[string]Origin `json:"origin,omitempty"`

	User      string            `json:"user,omitempty"` // name or uid; default is the driver's
	Env       map[string]string `json:"env,omitempty"`
	Meta      map[string]string `json:"meta,omitempty"`
	Resources Resources         `json:"resources"`
	Lifecycle *Lifecycle        `json:"lifecycle,omitempty"` // nil is a main task
	Leader    bool              `json:"leader,omitempty"`    // when it ends the others are killed
	DependsOn []Dependency      `json:"depends_on,omitempty"`

	Restart       *RestartPolicy `json:"restart,omitempty"`        // nil: DefaultRestart of the job type
	KillTimeout   time.Duration  `json:"kill_timeout,omitempty"`   // ns; 0 is DefaultKillTimeout
	KillSignal    string         `json:"kill_signal,omitempty"`    // "" is the driver's default
	ShutdownDelay time.Duration  `json:"shutdown_delay,omitempty"` // ns
	Logs          *LogConfig     `json:"logs,omitempty"`           // nil: DefaultLogs

	Attach Attachments `json:"attach"` // what hooks bring: templates, artifacts, services, …
}

// Attachments is what capabilities outside the driver bring to a task. Each
// list is read by the hook of that name and by nobody else.
type Attachments struct {
	Templates  []Template       `json:"templates,omitempty"`
	Artifacts  []Artifact       `json:"artifacts,omitempty"`
	Services   []Service        `json:"services,omitempty"`
	Mounts     []VolumeMount    `json:"mounts,omitempty"`
	Vault      *Vault           `json:"vault,omitempty"`
	Consul     *Consul          `json:"consul,omitempty"`
	Identities []Identity       `json:"identities,omitempty"`
	Secrets    []Secret         `json:"secrets,omitempty"`
	Payload    *DispatchPayload `json:"payload,omitempty"`
	Actions    []Action         `json:"actions,omitempty"`
	Schedule   *Schedule        `json:"schedule,omitempty"`
	CSIPlugin  map[string]any   `json:"csi_plugin,omitempty"` // carried; refused at run
	Scaling    []map[string]any `json:"scaling,omitempty"`    // the scheduler's; carried, not read
}

// Origin is a place in a source file, 1-based.
type Origin struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
}

// RestartMode says what happens when a window's attempts are used up.
type RestartMode string

// The restart modes.
const (
	RestartFail  RestartMode = "fail"  // the task has failed
	RestartDelay RestartMode = "delay" // wait out the window, then go on
)

// RestartPolicy says how a task that ended is started again.
type RestartPolicy struct {
	Attempts int           `json:"attempts"` // restarts per window; 0 never restarts
	Interval time.Duration `json:"interval"` // ns; the window; 0 is one window for the whole life
	Delay    time.Duration `json:"delay"`    // ns; plus a random 0–25 %
	Mode     RestartMode   `json:"mode"`
}

// LogConfig bounds what a task's output may take on disk, per stream.
type LogConfig struct {
	Disabled bool  `json:"disabled,omitempty"` // collect nothing
	MaxFiles int   `json:"max_files"`
	MaxSize  int64 `json:"max_size"` // bytes a file
}

// Dependency lets a task wait for another of its alloc.
type Dependency struct {
	Task      string `json:"task"`
	Condition string `json:"condition"` // started, healthy or completed
}
