// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"slices"
	"strings"
)

func (r *RestartPolicy) validate(f *faults, path string) {
	f.notNegative(path+".attempts", int64(r.Attempts))
	f.duration(path+".interval", r.Interval)
	f.duration(path+".delay", r.Delay)
	f.enum(path+".mode", string(r.Mode), string(RestartFail), string(RestartDelay))
	f.enum(path+".delay_function", string(r.DelayFunction), string(DelayConstant), string(DelayExponential))
	f.duration(path+".max_delay", r.MaxDelay)
	f.duration(path+".reset_after", r.ResetAfter)
	switch {
	case r.DelayFunction != DelayExponential:
		if r.MaxDelay > 0 {
			f.add(path+".max_delay", r.MaxDelay.String(), "is of no use with this delay_function", "delay_function exponential")
		}
		if r.ResetAfter > 0 {
			f.add(path+".reset_after", r.ResetAfter.String(), "is of no use with this delay_function", "delay_function exponential")
		}
	case r.MaxDelay > 0 && r.MaxDelay < r.Delay:
		f.add(path+".max_delay", r.MaxDelay.String(), "is below the delay", r.Delay.String()+" or more")
	}
	for i, x := range r.OnExit {
		path := at(path+".on_exit", i)
		f.required(path+".action", string(x.Action), "restart, fail, complete")
		f.enum(path+".action", string(x.Action), string(ExitRestart), string(ExitFail), string(ExitComplete))
		for j, c := range x.Codes {
			if c < -1 {
				f.add(at(path+".codes", j), c, "is no exit code", "0 or more, -1 for an exit nobody saw")
			}
		}
		for j, s := range x.Signals {
			if SignalNumber(s) == 0 {
				f.add(at(path+".signals", j), s, "is unknown", `1 to 64, or a name such as "SIGTERM"`)
			}
		}
	}
}

func (a *Alloc) validateDependencies(f *faults, t *Task, path string) {
	for i, d := range t.DependsOn {
		path := at(path+".depends_on", i)
		f.enum(path+".condition", string(d.Condition), string(DependStarted), string(DependHealthy), string(DependCompleted))
		o := a.Task(d.Task)
		switch {
		case o == nil:
			f.add(path+".task", d.Task, "is no task of this alloc", strings.Join(a.taskNames(), ", "))
		case d.Condition == DependCompleted && !t.poststop() && !o.mayComplete(a.JobType):
			f.add(path+".condition", d.Task, "never completes: it is started again when it ends well", "started, healthy")
		}
	}
}

func (t *Task) poststop() bool { return t.Hook() == LifecyclePoststop }

// mayComplete says whether some exit of its own ends the task well.
func (t *Task) mayComplete(jt JobType) bool {
	p := t.RestartPolicy(jt)
	return !t.RestartsOnSuccess(jt) || p.Attempts == 0 ||
		slices.ContainsFunc(p.OnExit, func(r ExitRule) bool { return r.Action == ExitComplete })
}

func (a *Alloc) taskNames() []string {
	var names []string
	for i := range a.Tasks {
		names = append(names, a.Tasks[i].Name)
	}
	return names
}

// stageWait says that the lifecycle alone makes t wait for o.
func stageWait(t, o *Task) bool {
	switch t.Hook() {
	case LifecycleMain:
		return o.Hook() == LifecyclePrestart
	case LifecyclePoststart:
		return o.Hook() == LifecycleMain
	case LifecyclePoststop:
		return !o.poststop()
	}
	return false
}

// waitCycle names the first circle of tasks that wait for each other, "" if there
// is none. Circles that a depends_on closes against the stages are found too, and
// each step says which of the two it is: "web -(depends_on)-> log -(stage)-> web".
func (a *Alloc) waitCycle() string {
	var path []string // names and steps in turn
	done := map[string]bool{}
	var visit func(t *Task) string
	visit = func(t *Task) string {
		if i := slices.Index(path, t.Name); i >= 0 {
			return strings.Join(append(path[i:], t.Name), " ")
		}
		if done[t.Name] {
			return ""
		}
		step := func(o *Task, how string) string {
			path = append(path, t.Name, how)
			defer func() { path = path[:len(path)-2] }()
			return visit(o)
		}
		for _, d := range t.DependsOn {
			if o := a.Task(d.Task); o != nil && !(t.poststop() && !o.poststop()) {
				if cycle := step(o, "-(depends_on)->"); cycle != "" {
					return cycle
				}
			}
		}
		for i := range a.Tasks {
			if o := &a.Tasks[i]; stageWait(t, o) {
				if cycle := step(o, "-(stage)->"); cycle != "" {
					return cycle
				}
			}
		}
		done[t.Name] = true
		return ""
	}
	for i := range a.Tasks {
		if cycle := visit(&a.Tasks[i]); cycle != "" {
			return cycle
		}
	}
	return ""
}
