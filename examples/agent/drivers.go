// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/driver/exec"
	"github.com/nodekeep/nodekeep/driver/rawexec"
	"github.com/nodekeep/nodekeep/jobspec"
)

// ownDrivers are those that every node of this program has; run has them on.
func ownDrivers() []nodekeep.DriverStatus {
	return []nodekeep.DriverStatus{{Name: exec.Name, Detected: true, Healthy: true}, {Name: rawexec.Name, Detected: true, Healthy: true}}
}

// glanceAtNode is how long a command that needs no node waits for one to answer.
const glanceAtNode = 2 * time.Second

// knownDrivers are the drivers of the node that serves or, if there is none, of
// this program.
func (a *app) knownDrivers(ctx context.Context) []nodekeep.DriverStatus {
	dir, err := a.dataDir()
	if err != nil {
		return ownDrivers()
	}
	if _, err := os.Stat(socketPath(dir)); err != nil {
		return ownDrivers()
	}
	ctx, cancel := context.WithTimeout(ctx, glanceAtNode)
	defer cancel()
	c := api.Dial(socketPath(dir))
	defer c.Close()
	list, err := c.Drivers(ctx)
	if err != nil || len(list) == 0 {
		return ownDrivers()
	}
	return list
}

// checkDrivers says which tasks no driver of known can run, each with its place in
// its file. Without known, of a node that is older, it says nothing.
func checkDrivers(jobs []parsedJob, known []nodekeep.DriverStatus) error {
	var errs []error
	for _, p := range jobs {
		if list := driverFaults(p, known, jobspec.SeverityError); len(known) > 0 && len(list) > 0 {
			errs = append(errs, &fileError{file: p.src.Name, faults: &jobspec.Error{Diagnostics: list}, other: true})
		}
	}
	return errors.Join(errs...)
}

// driverFaults are the tasks of one file that no driver of known can run.
func driverFaults(p parsedJob, known []nodekeep.DriverStatus, severity jobspec.Severity) (list []jobspec.Diagnostic) {
	for _, g := range p.spec.Groups {
		for i, t := range g.Alloc.Tasks {
			summary, detail := driverFault(t.Driver, known)
			if summary == "" {
				continue
			}
			at := g.Tree.All("task")[i].Range
			for _, arg := range g.Tree.All("task")[i].Attrs {
				if arg.Name == "driver" && arg.Range.Line > 0 {
					at = arg.Range
				}
			}
			list = append(list, jobspec.Diagnostic{
				Severity: severity, Summary: summary, Detail: detail, File: p.src.Name, Line: at.Line, Column: at.Column,
				EndLine: at.EndLine, EndColumn: at.EndColumn, Width: max(1, at.EndColumn-at.Column), Source: sourceLine(p.src, at.Line),
			})
		}
	}
	return list
}

// driverFault is what is wrong with a driver's name; empty if nothing is.
func driverFault(name string, known []nodekeep.DriverStatus) (summary, detail string) {
	var names []string
	for _, d := range known {
		if names = append(names, d.Name); d.Name != name {
			continue
		}
		if d.Detected {
			return "", ""
		}
		return fmt.Sprintf("Driver %s does not work here", name), api.Plain(errors.New(d.Description)) + "."
	}
	detail = "This node has " + strings.Join(names, ", ") + "."
	if best := closest(name, names); best != "" {
		detail += fmt.Sprintf(" Did you mean %q?", best)
	}
	return fmt.Sprintf("Unknown driver %q", name), detail
}
