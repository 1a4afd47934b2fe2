// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/account"
)

// TaskOptions are the config block of a task.
type TaskOptions struct {
	Command   string   `json:"command"`
	Args      []string `json:"args"`
	WorkDir   string   `json:"work_dir"`       // in the container; default /
	DeniedEnv []string `json:"denied_envvars"` // patterns such as AWS_*

	Image        string `json:"image"`         // a directory below the task's own; "" is the host's programs
	WritableRoot bool   `json:"writable_root"` // what is written outside of the task's directories goes with the task
	TmpMB        int64  `json:"tmp_mb"`        // /tmp in memory, of that size; 0 is the task's own directory
	ShmMB        int64  `json:"shm_mb"`        // of /dev/shm; default 64
	Hostname     string `json:"hostname"`      // default: that of the alloc's network, else the alloc's ID

	PIDMode    string `json:"pid_mode"` // private or host
	IPCMode    string `json:"ipc_mode"` // private or host
	UserNS     bool   `json:"user_namespace"`
	Init       bool   `json:"init"`   // a small init is PID 1: it forwards signals and reaps
	Strict     bool   `json:"strict"` // do not start with less than was asked for
	taskLimits        // in the same block
	privileges
}

// taskLimits is the part of TaskOptions that limits.
type taskLimits struct {
	HardCPU     bool              `json:"cpu_hard_limit"` // the share is a limit too
	PidsLimit   int64             `json:"pids_limit"`     // 0 is the node's
	SwapMB      int64             `json:"memory_swap_mb"` // beside the memory; 0 is none, -1 no limit
	OOMScoreAdj int               `json:"oom_score_adj"`
	Ulimits     map[string]string `json:"ulimit"` // soft:hard by name, such as nofile
}

// privileges is the part of TaskOptions that says what the task may do.
type privileges struct {
	CapAdd     []string `json:"cap_add"`
	CapDrop    []string `json:"cap_drop"`
	NoNewPrivs bool     `json:"no_new_privs"` // default true
	Seccomp    string   `json:"seccomp"`      // default or unconfined
}

// NodeOptions are what the operator decides, and what the driver knows of the
// node. The zero value is the strictest.
type NodeOptions struct {
	// StateRoot holds the state directories of the scope's containers.
	StateRoot string
	// Cgroup is the task's, below the mount point of every hierarchy; "" is none.
	Cgroup string
	// Entries are what a task without an image sees of the host; none is the usual
	// directories of programs, and of /etc what common programs read.
	Entries []Entry
	// AllowCaps are what cap_add may name; none is the default set, "all" is all.
	AllowCaps []string
	// DefaultUser runs tasks that name none; default nobody.
	DefaultUser string
	// DeniedUsers are names, uids and ranges of uids such as 1-99.
	DeniedUsers []string
	DeniedEnv   []string // patterns such as AWS_*

	AllowRoot       bool // tasks as uid 0 of the host; a user namespace needs no leave
	AllowHostPID    bool
	AllowHostIPC    bool
	AllowSetuid     bool // no_new_privs = false
	AllowUnconfined bool // seccomp = "unconfined"

	// IDs are what user namespaces are made of; Size 0 refuses them.
	IDs IDs
	// PidsLimit holds for tasks that ask for none; 0 is no limit.
	PidsLimit int64
	// CoreMHz is the speed of one core, for hard limits; 0 refuses them.
	CoreMHz int64
	// ResolvConf is what tasks get whose alloc has no DNS of its own; default
	// /etc/resolv.conf.
	ResolvConf string
	Features   Features
	// Lookup finds users; nil looks them up each time.
	Lookup func(user string) (account.Account, error)
}

// Applied is what will be in force for a task.
type Applied struct {
	Root       string   `json:"root"` // host or image
	Namespaces []string `json:"namespaces"`
	UID        int      `json:"uid"`
	GID        int      `json:"gid"`
	Caps       []string `json:"caps,omitempty"`
	NoNewPrivs bool     `json:"no_new_privs"`
	Seccomp    bool     `json:"seccomp"`
	Limits     Limits   `json:"limits"`
	// Missing is what was asked for, or is usual, and cannot be had here, each with
	// why. With strict there is none.
	Missing []string `json:"missing,omitempty"`
}

// FieldError is a value that cannot be taken.
type FieldError struct {
	Field   string // as the job writes it: config.cap_add[1]
	Value   string
	Allowed string // what can be taken
	Err     error  // the cause, if there is one
}

func (e *FieldError) Error() string {
	s := fmt.Sprintf("exec: %s is %q: %s", e.Field, e.Value, e.Allowed)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap gives the cause.
func (e *FieldError) Unwrap() error { return e.Err }

// ErrLess says that a task which is strict would get less isolation than it asked
// for; the text says what and why.
var ErrLess = errors.New("exec: strict, and this host cannot give all that was asked for")

// ErrUnsupported says that there are no containers here at all; the text says why.
var ErrUnsupported = errors.New("exec: containers cannot be made here")

// Schema is the config block.
func Schema() *driver.Schema {
	opt := func(typ, def string) *driver.Schema { return driver.Default(driver.Attr(typ, false), def) }
	attrs := map[string]*driver.Schema{
		"command":        driver.Attr("string", true),
		"no_new_privs":   opt("bool", "true"),
		"seccomp":        opt("string", `"default"`),
		"pid_mode":       opt("string", `"private"`),
		"ipc_mode":       opt("string", `"private"`),
		"shm_mb":         opt("number", "64"),
		"ulimit":         driver.Attr("map(string)", false),
		"args":           driver.Attr("list(string)", false),
		"denied_envvars": driver.Attr("list(string)", false),
		"cap_add":        driver.Attr("list(string)", false),
		"cap_drop":       driver.Attr("list(string)", false),
	}
	for _, name := range []string{"work_dir", "image", "hostname"} {
		attrs[name] = driver.Attr("string", false)
	}
	for _, name := range []string{"writable_root", "user_namespace", "init", "strict", "cpu_hard_limit"} {
		attrs[name] = opt("bool", "false")
	}
	for _, name := range []string{"tmp_mb", "pids_limit", "memory_swap_mb", "oom_score_adj"} {
		attrs[name] = opt("number", "0")
	}
	return driver.Object(attrs)
}

// Decode reads a config block. What the values may be is Build's to say.
func Decode(raw json.RawMessage) (TaskOptions, error) {
	c := TaskOptions{PIDMode: "private", IPCMode: "private", ShmMB: 64, privileges: privileges{NoNewPrivs: true, Seccomp: "default"}}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return c, &FieldError{Field: "config", Value: shorten(string(raw)), Allowed: "must be of the driver's form", Err: err}
	}
	return c, nil
}

func shorten(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}
