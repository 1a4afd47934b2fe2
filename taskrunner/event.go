// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodekeep/nodekeep/spec"
)

// Kind says what an event tells. Hooks may emit kinds of their own.
type Kind string

// The kinds.
const (
	Received            Kind = "Received"
	TaskSetup           Kind = "Task Setup"
	SetupFailure        Kind = "Setup Failure"
	FailedValidation    Kind = "Failed Validation"
	Driver              Kind = "Driver"
	DriverFailure       Kind = "Driver Failure"
	DownloadingArtifact Kind = "Downloading Artifacts"
	FailedArtifact      Kind = "Failed Artifact Download"
	Template            Kind = "Template"
	Started             Kind = "Started"
	Terminated          Kind = "Terminated"
	Restarting          Kind = "Restarting"
	NotRestarting       Kind = "Not Restarting"
	RestartSignaled     Kind = "Restart Signaled"
	Signaling           Kind = "Signaling"
	Killing             Kind = "Killing"
	Killed              Kind = "Killed"
	LeaderDead          Kind = "Leader Task Dead"
	SiblingFailed       Kind = "Sibling Task Failed"
	MainsDead           Kind = "Main Tasks Dead"
	ShutdownDelay       Kind = "Waiting for Shutdown Delay"
	SkippingDelay       Kind = "Skipping Shutdown Delay"
	FailedRestoring     Kind = "Failed Restoring Task"
	AwaitingContact     Kind = "Waiting for First Contact"
	Reconnected         Kind = "Reconnected"
	HookFailed          Kind = "Task Hook Failed"
	AllocUnhealthy      Kind = "Alloc Unhealthy"
	DeviceEvent         Kind = "Device"
	Leaked              Kind = "Leaked"
	OutputLost          Kind = "Output Lost"
)

// Event is something that happened to the task. Attrs hold the facts; Text makes
// English of them at the edge.
type Event struct {
	Seq   uint64            `json:"seq"` // 1, 2, 3 …: a gap shows that events were dropped
	Time  time.Time         `json:"time"`
	Kind  Kind              `json:"kind"`
	Attrs map[string]string `json:"attrs,omitempty"`
}

// Text is the event in English, to stand beside its kind or alone.
func (e Event) Text() string {
	a := func(k string) string { return e.Attrs[k] }
	with := func(s string) string { return join(s, a("reason")) }
	switch e.Kind {
	case Received:
		return "Task received by this node"
	case TaskSetup:
		return join("Preparing the task", a("message"))
	case Started:
		return "Task started by its driver"
	case Terminated:
		return terminatedText(e.Attrs)
	case Restarting:
		return with("The next start is in " + brief(a("delay")))
	case NotRestarting:
		return with("The task is not started again")
	case RestartSignaled:
		if r := a("reason"); r != "" {
			return r
		}
		return "The restart was asked for"
	case Signaling:
		return with("Sending signal " + spec.SignalName(a("signal")))
	case Killing:
		return with("Stopping the task, kill timeout " + brief(a("grace")))
	case Killed:
		return with("Task stopped")
	case LeaderDead:
		return with("The leader task has ended")
	case SiblingFailed:
		return with("Another task of the alloc failed")
	case MainsDead:
		return with("The main tasks have ended")
	case ShutdownDelay:
		return "Waiting " + brief(a("delay")) + " before stopping the task"
	case SkippingDelay:
		return "Shutdown delay skipped"
	case FailedRestoring:
		return join("The task was not found again after a restart of the agent", a("error"))
	case AwaitingContact:
		return "Waiting to hear from the control plane before starting again"
	case HookFailed:
		return join("Hook "+a("hook")+" failed in "+a("callback"), a("error"))
	case OutputLost:
		return "The task ended while nobody was there to read its output: the last of it may be lost"
	case Leaked:
		return join("The task could not be ended and may still run", a("error"))
	}
	switch message, err := a("message"), a("error"); {
	case message != "":
		return join(message, err)
	case err != "":
		return err
	case len(e.Attrs) > 0:
		return strings.Join(attrList(e.Attrs), ", ")
	}
	return string(e.Kind)
}

// brief is a duration as people say it: nobody waits nanoseconds. The attribute has
// all of it.
func brief(duration string) string {
	d, err := time.ParseDuration(duration)
	switch {
	case err != nil:
		return duration
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.String()
}

func terminatedText(attrs map[string]string) string {
	s := "Exit code " + attrs["exit_code"]
	if v := attrs["signal"]; v != "" {
		s += ", signal " + v
	}
	if attrs["oom_killed"] != "" {
		s += ", killed by the kernel for want of memory"
	}
	return join(s, attrs["error"])
}

func join(s, more string) string {
	if more == "" {
		return s
	}
	return s + ": " + more
}

func attrList(attrs map[string]string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(attrs)) {
		out = append(out, fmt.Sprintf("%s=%s", k, attrs[k]))
	}
	return out
}
