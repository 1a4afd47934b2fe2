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

// DelayFunction says how the delay before a restart grows.
type DelayFunction string

// The delay functions. The empty string means DelayConstant.
const (
	DelayConstant    DelayFunction = "constant"    // always Delay
	DelayExponential DelayFunction = "exponential" // doubled with each restart in a row, up to MaxDelay
)

// RestartPolicy says how a task that ended is started again. Package
// taskrunner/restart holds the rules.
type RestartPolicy struct {
	Attempts int           `json:"attempts"` // restarts per window; 0 never restarts
	Interval time.Duration `json:"interval"` // ns; the window; 0 is one window for the whole life
	Delay    time.Duration `json:"delay"`    // ns; plus a random 0–25 %
	Mode     RestartMode   `json:"mode"`

	DelayFunction DelayFunction `json:"delay_function,omitempty"`
	// MaxDelay, ns, caps an exponential delay before its random part is added;
	// 0 is DefaultMaxDelay, or Delay if that is longer.
	MaxDelay time.Duration `json:"max_delay,omitempty"`
	// ResetAfter, ns: an attempt that ran that long was healthy, and an exponential
	// delay begins anew; 0 is DefaultResetAfter.
	ResetAfter time.Duration `json:"reset_after,omitempty"`
	// OnExit are exceptions for some exits. The first that fits counts.
	OnExit []ExitRule `json:"on_exit,omitempty"`
}

// ExitAction is what a rule makes of an exit.
type ExitAction string

// The actions.
const (
	ExitRestart  ExitAction = "restart"  // by the policy, also where the exit would have ended the task
	ExitFail     ExitAction = "fail"     // the task has failed; no restart
	ExitComplete ExitAction = "complete" // the task has done its work, whatever its exit code; no restart
)

// ExitRule says what follows some exits. It fits an exit that any of its
// conditions fits; one without conditions fits every exit that was seen.
type ExitRule struct {
	Codes   []int      `json:"codes,omitempty"`   // death by signal n has code 128+n; −1 is an exit nobody saw
	Signals []string   `json:"signals,omitempty"` // that ended it: names (SignalNumber) or numbers
	OOM     bool       `json:"oom,omitempty"`     // killed by the kernel for want of memory
	Action  ExitAction `json:"action"`
}

// LogConfig bounds what a task's output may take on disk, per stream.
type LogConfig struct {
	Disabled bool  `json:"disabled,omitempty"` // collect nothing
	MaxFiles int   `json:"max_files"`
	MaxSize  int64 `json:"max_size"` // bytes a file
}

// Condition is what a task waits for in another.
type Condition string

// The conditions. The empty string means DependStarted.
const (
	DependStarted   Condition = "started"   // it was started, since the lifecycle last began
	DependHealthy   Condition = "healthy"   // it has run for the alloc's min_healthy and its checks pass, or has ended well
	DependCompleted Condition = "completed" // it has ended well
)

// Dependency lets a task wait for another of its alloc, beside the stages of the
// lifecycle. It is asked at every start. For a poststop task whatever has ended
// fulfils any condition.
type Dependency struct {
	Task      string    `json:"task"`
	Condition Condition `json:"condition"`
}
