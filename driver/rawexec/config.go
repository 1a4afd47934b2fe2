// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package rawexec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// taskConfig is Task.Config as decoded by the schema.
type taskConfig struct {
	Command   string   `json:"command"`
	Args      []string `json:"args"`
	WorkDir   string   `json:"work_dir"`
	DeniedEnv []string `json:"denied_envvars"`
	NoCgroups bool     `json:"no_cgroups"`
	OOMScore  int      `json:"oom_score_adj"`
}

// decode reads and checks a task's configuration; the error lists all faults.
func decode(raw json.RawMessage) (taskConfig, error) {
	var c taskConfig
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return c, fmt.Errorf("rawexec: config: %w", err)
	}
	errs := []error{patterns("config.denied_envvars", c.DeniedEnv)}
	if c.Command == "" {
		errs = append(errs, errors.New("rawexec: config.command is empty: it must name the program to run"))
	}
	if c.OOMScore < 0 || c.OOMScore > 1000 {
		errs = append(errs, fmt.Errorf("rawexec: config.oom_score_adj is %d: must be from 0 to 1000", c.OOMScore))
	}
	nul := func(field, s string) {
		if strings.ContainsRune(s, 0) {
			errs = append(errs, fmt.Errorf("rawexec: config.%s %q holds a NUL byte, which no program can be given", field, s))
		}
	}
	nul("command", c.Command)
	nul("work_dir", c.WorkDir)
	for i, arg := range c.Args {
		nul(fmt.Sprintf("args[%d]", i), arg)
	}
	return c, errors.Join(errs...)
}

// maxVariable is what Linux takes of one variable, name and = included.
const maxVariable = 128<<10 - 1

// environment leaves out what is denied and checks the rest, which passes as it
// is. The error lists all faults and no value: those may be secret.
func environment(env []string, lists ...[]string) ([]string, error) {
	var errs []error
	out := make([]string, 0, len(env))
	for i, kv := range env {
		name, _, ok := strings.Cut(kv, "=")
		switch {
		case !ok || name == "":
			errs = append(errs, fmt.Errorf("rawexec: environment: entry %d has no name", i))
		case denied(name, lists...):
		case strings.ContainsRune(kv, 0):
			errs = append(errs, fmt.Errorf("rawexec: environment: %q holds a NUL byte, which no program can be given", name))
		case len(kv) > maxVariable:
			errs = append(errs, fmt.Errorf("rawexec: environment: %.64q takes %d bytes with its name, Linux allows %d", name, len(kv), maxVariable))
		default:
			out = append(out, kv)
		}
	}
	return out, errors.Join(errs...)
}
