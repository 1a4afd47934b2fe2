// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec

import "time"

// Service is an entry in a service registry.
type Service struct {
	Name              string            `json:"name"`
	Provider          string            `json:"provider,omitempty"` // default consul
	Port              string            `json:"port,omitempty"`     // a label or a number
	AddressMode       string            `json:"address_mode,omitempty"`
	Address           string            `json:"address,omitempty"`
	Tags              []string          `json:"tags,omitempty"`
	CanaryTags        []string          `json:"canary_tags,omitempty"`
	EnableTagOverride bool              `json:"enable_tag_override,omitempty"`
	Meta              map[string]string `json:"meta,omitempty"`
	CanaryMeta        map[string]string `json:"canary_meta,omitempty"`
	TaggedAddresses   map[string]string `json:"tagged_addresses,omitempty"`
	Checks            []Check           `json:"checks,omitempty"`
	CheckRestart      *CheckRestart     `json:"check_restart,omitempty"`
	Connect           map[string]any    `json:"connect,omitempty"` // carried as written
	Weights           map[string]int    `json:"weights,omitempty"` // passing, warning
	OnUpdate          string            `json:"on_update,omitempty"`
	Task              string            `json:"task,omitempty"` // of a group's service: whose script checks run
	Cluster           string            `json:"cluster,omitempty"`
	Kind              string            `json:"kind,omitempty"`
	Identity          *Identity         `json:"identity,omitempty"`
}

// Check is a health check of a service.
type Check struct {
	Name                   string              `json:"name,omitempty"`
	Type                   string              `json:"type"` // http, tcp, grpc, script
	Interval               time.Duration       `json:"interval"`
	Timeout                time.Duration       `json:"timeout"`
	Path                   string              `json:"path,omitempty"`
	Protocol               string              `json:"protocol,omitempty"`
	Port                   string              `json:"port,omitempty"`
	AddressMode            string              `json:"address_mode,omitempty"`
	Method                 string              `json:"method,omitempty"`
	Body                   string              `json:"body,omitempty"`
	Header                 map[string][]string `json:"header,omitempty"`
	Command                string              `json:"command,omitempty"`
	Args                   []string            `json:"args,omitempty"`
	Task                   string              `json:"task,omitempty"`
	InitialStatus          string              `json:"initial_status,omitempty"`
	SuccessBeforePassing   int                 `json:"success_before_passing,omitempty"`
	FailuresBeforeCritical int                 `json:"failures_before_critical,omitempty"`
	FailuresBeforeWarning  int                 `json:"failures_before_warning,omitempty"`
	GRPCService            string              `json:"grpc_service,omitempty"`
	GRPCUseTLS             bool                `json:"grpc_use_tls,omitempty"`
	TLSServerName          string              `json:"tls_server_name,omitempty"`
	TLSSkipVerify          bool                `json:"tls_skip_verify,omitempty"`
	Expose                 bool                `json:"expose,omitempty"`
	OnUpdate               string              `json:"on_update,omitempty"`
	Notes                  string              `json:"notes,omitempty"`
	CheckRestart           *CheckRestart       `json:"check_restart,omitempty"`
}

// CheckState is how a check stands.
type CheckState string

// The states of checks.
const (
	CheckPending CheckState = "pending" // no result yet, or none since the agent restarted
	CheckPassing CheckState = "passing"
	CheckFailing CheckState = "failing"
)

// CheckStatus is a check of an alloc's services as it stands.
type CheckStatus struct {
	Name    string     `json:"name"`
	Service string     `json:"service,omitempty"`
	Task    string     `json:"task,omitempty"` // whose service it checks; "" is the group's
	State   CheckState `json:"state"`
	Output  string     `json:"output,omitempty"` // of the last run, for people
}

// CheckRestart restarts a task whose check keeps failing.
type CheckRestart struct {
	Limit          int           `json:"limit"` // failures in a row; 0 never restarts
	Grace          time.Duration `json:"grace"` // ns after a start
	IgnoreWarnings bool          `json:"ignore_warnings,omitempty"`
}

// Template is a file rendered from data that changes.
type Template struct {
	Source        string         `json:"source,omitempty"`
	Destination   string         `json:"destination"`
	Data          string         `json:"data,omitempty"`        // never interpolated by us
	ChangeMode    string         `json:"change_mode,omitempty"` // restart (default), signal, script, noop
	ChangeSignal  string         `json:"change_signal,omitempty"`
	ChangeScript  *ChangeScript  `json:"change_script,omitempty"`
	Splay         *time.Duration `json:"splay,omitempty"` // ns, default 5 s
	Perms         string         `json:"perms,omitempty"` // octal, default 644
	UID           *int           `json:"uid,omitempty"`
	GID           *int           `json:"gid,omitempty"`
	Left          string         `json:"left_delimiter,omitempty"`
	Right         string         `json:"right_delimiter,omitempty"`
	Env           bool           `json:"env,omitempty"`
	Once          bool           `json:"once,omitempty"`
	VaultGrace    time.Duration  `json:"vault_grace,omitempty"` // legacy, carried
	Wait          *WaitBounds    `json:"wait,omitempty"`
	ErrMissingKey bool           `json:"error_on_missing_key,omitempty"`
}

// ChangeScript is what a template's change runs inside the task.
type ChangeScript struct {
	Command     string        `json:"command"`
	Args        []string      `json:"args,omitempty"`
	Timeout     time.Duration `json:"timeout"` // ns, default 5 s
	FailOnError bool          `json:"fail_on_error,omitempty"`
	FirstRender bool          `json:"run_on_first_render,omitempty"` // also once the template is there
}

// WaitBounds is how long a renderer waits for more changes.
type WaitBounds struct {
	Min time.Duration `json:"min"`
	Max time.Duration `json:"max"`
}

// Artifact is something fetched before the task starts.
type Artifact struct {
	Source      string            `json:"source"`
	Destination string            `json:"destination,omitempty"` // default local/
	Mode        string            `json:"mode,omitempty"`        // any (default), file, dir
	Options     map[string]string `json:"options,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
	Insecure    bool              `json:"insecure,omitempty"`
	Chown       bool              `json:"chown,omitempty"`
}

// Vault is a task's access to a Vault cluster.
type Vault struct {
	Cluster              string   `json:"cluster,omitempty"`
	Role                 string   `json:"role,omitempty"`
	Namespace            string   `json:"namespace,omitempty"`
	Policies             []string `json:"policies,omitempty"`
	Env                  *bool    `json:"env,omitempty"` // default true
	DisableFile          bool     `json:"disable_file,omitempty"`
	AllowTokenExpiration bool     `json:"allow_token_expiration,omitempty"`
	ChangeMode           string   `json:"change_mode,omitempty"` // restart (default), signal, noop
	ChangeSignal         string   `json:"change_signal,omitempty"`
}

// Consul is a task's access to a Consul cluster.
type Consul struct {
	Cluster   string `json:"cluster,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Partition string `json:"partition,omitempty"`
}

// Identity is a signed workload identity handed to a task.
type Identity struct {
	Name         string        `json:"name,omitempty"` // "" is the default identity
	Audience     []string      `json:"aud,omitempty"`
	Env          bool          `json:"env,omitempty"`
	File         bool          `json:"file,omitempty"`
	FilePath     string        `json:"filepath,omitempty"`
	ServiceName  string        `json:"service_name,omitempty"`
	ChangeMode   string        `json:"change_mode,omitempty"`
	ChangeSignal string        `json:"change_signal,omitempty"`
	TTL          time.Duration `json:"ttl,omitempty"`
}

// Secret is a value a provider of the host resolves for templates.
type Secret struct {
	Name     string            `json:"name"`
	Provider string            `json:"provider"`
	Path     string            `json:"path,omitempty"`
	Config   map[string]any    `json:"config,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
}

// DispatchPayload is where a dispatched job's payload is written.
type DispatchPayload struct {
	File    string `json:"file"` // below local/
	Payload []byte `json:"payload,omitempty"`
}

// Action is a command that people may run inside the task by name.
type Action struct {
	Name    string   `json:"name"`
	Command string   `json:"command"`
	Args    []string `json:"args,omitempty"`
}

// Schedule is when a task may run; the host's, carried and not read.
type Schedule struct {
	Start    string `json:"start"`
	End      string `json:"end"`
	Timezone string `json:"timezone,omitempty"`
}
