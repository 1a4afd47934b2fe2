// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/driver/driverconfig"
	"github.com/nodekeep/nodekeep/driver/rawexec"
	"github.com/nodekeep/nodekeep/jobspec"
	"github.com/nodekeep/nodekeep/spec"
)

var jobCommand = command{
	name: "job", args: "validate FILE…", short: "checks job files and shows what is wrong, line by line",
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		var vars stringList
		fs.Var(&vars, "var", "set a variable of the jobs: `K=V`; may be repeated")
		return func(_ context.Context, args []string) error {
			switch {
			case len(args) == 0 || args[0] != "validate":
				return usage("job can validate: nodekeep job validate FILE")
			case len(args) == 1:
				return usage("name a job file: nodekeep job validate FILE")
			}
			jobs, err := parseJobs(args[1:], vars)
			if err != nil {
				return err
			}
			return a.printValid(args[1:], jobs)
		}
	},
}

// validJob is what "job validate --json" prints of a file.
type validJob struct {
	File   string `json:"file"`
	Job    string `json:"job"`
	Allocs int    `json:"allocs"`
}

func (a *app) printValid(files []string, jobs []api.Job) error {
	list := make([]validJob, len(jobs))
	for i, j := range jobs {
		list[i] = validJob{File: files[i], Job: j.ID, Allocs: len(j.Allocs)}
	}
	if a.json {
		return a.printJSON(list)
	}
	for _, v := range list {
		fmt.Fprintf(a.stdout, "%s: job %s is valid, %d allocs\n", v.File, v.Job, v.Allocs)
	}
	return nil
}

// fileError is a job file with faults; they are shown with their lines.
type fileError struct {
	file   string
	faults *jobspec.Error
}

func (e *fileError) Error() string {
	return fmt.Sprintf("%s is not a valid job file: correct the lines shown above", e.file)
}

// render shows the faults.
func (e *fileError) render(w io.Writer) { _ = e.faults.Render(w, false) }

// parseJobs reads job files, one job each; "-" is the standard input. Faults of
// all files are in the error.
func parseJobs(files []string, vars []string) ([]api.Job, error) {
	values := map[string]string{}
	for _, kv := range vars {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return nil, usage("--var %q: use --var NAME=VALUE", kv)
		}
		values[k] = v
	}
	var jobs []api.Job
	var faults []error
	from := map[string]string{}
	for _, name := range files {
		job, err := parseJob(name, values)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		key := fileName(job.Namespace, job.ID)
		if other, ok := from[key]; ok {
			faults = append(faults, fmt.Errorf("%s and %s both hold job %q: give them different names", other, name, job.ID))
		}
		from[key] = name
		jobs = append(jobs, job)
	}
	return jobs, errors.Join(faults...)
}

func parseJob(name string, vars map[string]string) (j api.Job, err error) {
	file := jobspec.File{Name: name}
	if name == "-" {
		file.Name = "standard input"
		if file.Src, err = io.ReadAll(os.Stdin); err != nil {
			return j, fmt.Errorf("standard input: %w", err)
		}
	}
	parsed, err := jobspec.Parse(jobspec.ParseConfig{File: file, Vars: vars, Env: os.Environ()})
	var faults *jobspec.Error
	switch {
	case errors.As(err, &faults):
		return j, &fileError{file.Name, faults}
	case errors.Is(err, fs.ErrNotExist):
		return j, fmt.Errorf("job file %s does not exist: check the path", name)
	case err != nil:
		return j, fmt.Errorf("job file %s cannot be read: %w", name, err)
	}
	if faults := configFaults(parsed, file); faults != nil {
		return j, &fileError{file.Name, faults}
	}
	allocs, err := parsed.Allocs(jobspec.AllocOptions{Time: time.Now().UTC()})
	if err != nil {
		return j, fmt.Errorf("%s: %w", name, err)
	}
	j = api.Job{Namespace: parsed.Namespace, ID: parsed.ID, Allocs: allocs}
	if j.Namespace == "" {
		j.Namespace = spec.DefaultNamespace
	}
	return j, nil
}

// configFaults tells what is wrong with config blocks, as far as it can be known
// before the tasks start, of tasks whose driver is linked into this program.
func configFaults(j *jobspec.Job, file jobspec.File) *jobspec.Error {
	raw, err := rawexec.New(rawexec.Config{})(nil) // only to ask for its schema
	if err != nil {
		return nil
	}
	var all jobspec.Error
	for _, g := range j.Groups {
		for _, t := range g.Alloc.Tasks {
			if t.Driver != rawexec.Name {
				continue
			}
			for _, err := range parts(driverconfig.Validate(raw.Info().TaskSchema, t.Config, t.Origin)) {
				all.Diagnostics = append(all.Diagnostics, diagnostic(err, t.Name, file))
			}
		}
	}
	if len(all.Diagnostics) == 0 {
		return nil
	}
	return &all
}

// diagnostic shows a fault of a task's config with its line, where that is known.
func diagnostic(err error, task string, file jobspec.File) jobspec.Diagnostic {
	d := jobspec.Diagnostic{Summary: fmt.Sprintf("Wrong configuration of task %q", task), Detail: err.Error(), File: file.Name, Line: 1, Column: 1, Width: 1}
	var e *driverconfig.Error
	if !errors.As(err, &e) || e.Origin.Line == 0 {
		return d
	}
	d.Detail, d.Line, d.Column = e.Path+": "+e.Problem, e.Origin.Line, e.Origin.Column
	src := file.Src
	if src == nil {
		src, _ = os.ReadFile(file.Name) // was read a moment ago; without it the line is not shown
	}
	if lines := strings.Split(string(src), "\n"); d.Line <= len(lines) {
		d.Source = strings.TrimRight(lines[d.Line-1], "\r")
	}
	return d
}
