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
