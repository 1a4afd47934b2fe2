// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// What stands in where a spec says nothing.
const (
	DefaultKillTimeout = 5 * time.Second // from the stop signal to SIGKILL

	DefaultCPU       = 100 // MHz
	DefaultMemoryMB  = 300
	DefaultSecretsMB = 1
	DefaultDiskMB    = 300

	DefaultLogMaxFiles = 10
	DefaultLogMaxSize  = 10 << 20 // bytes a file

	DefaultNamespace = "default"
	DefaultRegion    = "global"

	DefaultMaxDelay   = 5 * time.Minute  // of an exponential restart delay
	DefaultResetAfter = 10 * time.Minute // a run that long was healthy

	DefaultChangeMode    = "restart"
	DefaultSplay         = 5 * time.Second
	DefaultScriptTimeout = 5 * time.Second
	DefaultPerms         = "644"

	DefaultHealthCheck      = "checks"
	DefaultMinHealthy       = 10 * time.Second
	DefaultHealthDeadline   = 5 * time.Minute
	DefaultProgressDeadline = 10 * time.Minute
)

// DefaultRestart is the policy of a task that has none: 2 restarts in 30 min
// for services and system jobs, 3 in 24 h for batches, 15 s apart, then fail.
func DefaultRestart(t JobType) RestartPolicy {
	if t.Batch() {
		return RestartPolicy{Attempts: 3, Interval: 24 * time.Hour, Delay: 15 * time.Second, Mode: RestartFail}
	}
	return RestartPolicy{Attempts: 2, Interval: 30 * time.Minute, Delay: 15 * time.Second, Mode: RestartFail}
}

// DefaultLogs is the log configuration of a task that has none.
func DefaultLogs() LogConfig {
	return LogConfig{MaxFiles: DefaultLogMaxFiles, MaxSize: DefaultLogMaxSize}
}

// WithDefaults returns a copy of a in which every nil or zero that stands for a
// default is that default, so that readers need no rules of their own. The
// receiver is not changed and shares nothing with the copy. Doing it twice is
// the same as once. Zeros that mean something stay: in a restart policy that is
// there, 0 attempts are none (JSON fills in the fields a policy leaves out).
// Task configs are brought to compact JSON, so that equal ones have equal bytes.
func (a *Alloc) WithDefaults() *Alloc {
	if a == nil {
		return nil
	}
	c := a.Clone()
	def(&c.JobType, JobService)
	def(&c.DesiredStatus, DesiredRun)
	def(&c.Namespace, DefaultNamespace)
	def(&c.Region, DefaultRegion)
	def(&c.JobName, c.JobID)
	def(&c.Name, AllocName(c.JobID, c.Group, c.Index))
	for i := range c.Tasks {
		c.Tasks[i].setDefaults(c.JobType)
	}
	setServiceDefaults(c.Services)
	setNetworkDefaults(c.Networks)
	for name, v := range c.Volumes {
		def(&v.Name, name)
		def(&v.Type, "host")
		c.Volumes[name] = v
	}
	def(&c.Settings.Disk.SizeMB, DefaultDiskMB)
	if h := c.Settings.Health; h != nil {
		def(&h.Check, DefaultHealthCheck)
		def(&h.MinHealthy, DefaultMinHealthy)
		def(&h.Deadline, DefaultHealthDeadline)
		def(&h.ProgressDeadline, DefaultProgressDeadline)
	}
	return c
}

// AllocName is the name an alloc has for people: "<job>.<group>[<index>]".
func AllocName(job, group string, index int) string {
	if job != "" {
		job += "."
	}
	return fmt.Sprintf("%s%s[%d]", job, group, index)
}

// Task returns the task of that name, nil if there is none. It points into a.
func (a *Alloc) Task(name string) *Task {
	if a == nil {
		return nil
	}
	if i := slices.IndexFunc(a.Tasks, func(t Task) bool { return t.Name == name }); i >= 0 {
		return &a.Tasks[i]
	}
	return nil
}

// Stopped says whether the control plane wants a not to run.
func (a *Alloc) Stopped() bool {
	return a.DesiredStatus == DesiredStop || a.DesiredStatus == DesiredEvict
}

// Hook is the stage the task belongs to.
func (t *Task) Hook() LifecycleHook {
	if t.Lifecycle == nil {
		return LifecycleMain
	}
	return t.Lifecycle.Hook
}

// IsMain says whether t is one of the tasks the alloc is there for.
func (t *Task) IsMain() bool { return t.Hook() == LifecycleMain }

// IsSidecar says whether t runs beside the main tasks as long as they do.
func (t *Task) IsSidecar() bool {
	return (t.Hook() == LifecyclePrestart || t.Hook() == LifecyclePoststart) && t.Lifecycle.Sidecar
}

// RestartPolicy is the policy in force in a job of that type.
func (t *Task) RestartPolicy(jt JobType) RestartPolicy {
	if t.Restart == nil {
		return DefaultRestart(jt)
	}
	p := *t.Restart
	def(&p.Mode, RestartFail)
	if p.DelayFunction == DelayExponential {
		def(&p.MaxDelay, max(DefaultMaxDelay, p.Delay))
		def(&p.ResetAfter, DefaultResetAfter)
	}
	return p
}

// LogConfig is the log configuration in force.
func (t *Task) LogConfig() LogConfig {
	l := DefaultLogs()
	if t.Logs != nil {
		l = *t.Logs
		def(&l.MaxFiles, DefaultLogMaxFiles)
		def(&l.MaxSize, DefaultLogMaxSize)
	}
	return l
}

// RestartsOnSuccess says whether exit 0 is followed by another start: so it is
// for sidecars and for the main tasks of services and system jobs.
func (t *Task) RestartsOnSuccess(jt JobType) bool {
	return t.IsSidecar() || t.IsMain() && !jt.Batch()
}

func (t *Task) setDefaults(jt JobType) {
	// One form per value, so that what comes back from JSON is equal, byte for byte.
	if c, err := json.Marshal(t.Config); err == nil && len(t.Config) > 0 {
		t.Config = c
	}
	restart, logs := t.RestartPolicy(jt), t.LogConfig()
	t.Restart, t.Logs = &restart, &logs
	for i := range t.DependsOn {
		def(&t.DependsOn[i].Condition, DependStarted)
	}
	def(&t.KillTimeout, DefaultKillTimeout)
	def(&t.Resources.CPU, DefaultCPU)
	def(&t.Resources.MemoryMB, DefaultMemoryMB)
	def(&t.Resources.SecretsMB, DefaultSecretsMB)
	for i := range t.Resources.Devices {
		def(&t.Resources.Devices[i].Count, 1)
	}
	if t.Resources.Numa != nil {
		def(&t.Resources.Numa.Affinity, "none")
	}
	setNetworkDefaults(t.Resources.Networks)
	t.Attach.setDefaults()
}

func (at *Attachments) setDefaults() {
	for i := range at.Templates {
		t := &at.Templates[i]
		def(&t.ChangeMode, DefaultChangeMode)
		def(&t.Perms, DefaultPerms)
		if t.Splay == nil {
			t.Splay = new(DefaultSplay)
		}
		if t.ChangeScript != nil {
			def(&t.ChangeScript.Timeout, DefaultScriptTimeout)
		}
	}
	for i := range at.Artifacts {
		def(&at.Artifacts[i].Destination, "local/")
		def(&at.Artifacts[i].Mode, "any")
	}
	for i := range at.Mounts {
		def(&at.Mounts[i].PropagationMode, "private")
	}
	if v := at.Vault; v != nil {
		def(&v.ChangeMode, DefaultChangeMode)
		if v.Env == nil {
			v.Env = new(true)
		}
	}
	setServiceDefaults(at.Services)
}

func setServiceDefaults(services []Service) {
	for i := range services {
		def(&services[i].Provider, "consul")
	}
}

func setNetworkDefaults(networks []Network) {
	for i := range networks {
		def(&networks[i].Mode, "host")
	}
}

// def sets a zero value to its default.
func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
