// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverconfig"
	"github.com/nodekeep/nodekeep/jobspec"
	"github.com/nodekeep/nodekeep/spec"
)

// capabilities are what this node has beyond every node's own: the hooks that
// node.go links. What else a job file asks for is told as not acted on.
var capabilities = []jobspec.Actor{jobspec.ByVolume}

// jobFlags are the flags of every command that reads job files.
type jobFlags struct {
	vars, varFiles stringList
	lenient        bool
}

func (f *jobFlags) bind(fs *flag.FlagSet) {
	fs.Var(&f.vars, "var", "set a variable of the jobs: `K=V`; may be repeated")
	fs.Var(&f.varFiles, "var-file", "read variables from `FILE`, lines of name = value or a JSON object; may be repeated, a later one wins")
	fs.BoolVar(&f.lenient, "lenient", false, "pass over names that job files do not have, with a warning")
}

// config is how a file is read. Functions such as file() may read what the user
// may, relative to the working directory.
func (f *jobFlags) config(file jobspec.File) (jobspec.ParseConfig, error) {
	cfg := jobspec.ParseConfig{File: file, Env: os.Environ(), Getenv: os.LookupEnv, Lenient: f.lenient, Vars: map[string]string{}}
	for _, kv := range f.vars {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return cfg, usage("--var %q: use --var NAME=VALUE", kv)
		}
		cfg.Vars[k] = v
	}
	for _, name := range f.varFiles {
		cfg.VarFiles = append(cfg.VarFiles, jobspec.File{Name: name})
	}
	if dir, err := os.Getwd(); err == nil {
		volume := filepath.VolumeName(dir)
		cfg.Files, cfg.Dir = os.DirFS(volume+string(filepath.Separator)), filepath.ToSlash(dir[len(volume):])
	}
	return cfg, nil
}

// fileError is a job file with faults; they are shown with their lines.
type fileError struct {
	file   string
	faults *jobspec.Error
	other  bool // it is valid, but not for this node
}

func (e *fileError) Error() string {
	if e.other {
		return fmt.Sprintf("%s cannot run on this node: see the lines shown above", e.file)
	}
	return fmt.Sprintf("%s is not a valid job file: correct the lines shown above", e.file)
}

// render shows the faults.
func (e *fileError) render(w io.Writer) { _ = e.faults.Render(w, colored(w)) }

// colored says whether w is a terminal of someone who has not asked for plain text.
func colored(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(w)
}

// parsedJob is a job file that was read.
type parsedJob struct {
	file string
	src  jobspec.File
	spec *jobspec.Job
	job  api.Job
}

// parseJobs reads job files, one job each; "-" is the standard input. Faults of
// all files are in the error. What was read with a doubt, and what this node does
// not do of what a job asks for, is told on stderr.
func (a *app) parseJobs(files []string, flags jobFlags) ([]parsedJob, error) {
	parsed, err := readJobs(files, flags)
	if err != nil {
		return nil, err
	}
	for _, p := range parsed {
		a.warnOf(p.spec.Warnings)
		var names []string
		for _, n := range p.spec.NotActedOn(append(slices.Clone(capabilities), jobspec.ByScheduler)...) {
			if !slices.Contains(names, n.Name) {
				names = append(names, n.Name)
			}
		}
		if len(names) > 0 {
			a.warn("job %s: this node does not act on %s: see nodekeep job plan %s", p.job.ID, strings.Join(names, ", "), p.file)
		}
	}
	return parsed, nil
}

func jobsOf(parsed []parsedJob) []api.Job {
	jobs := make([]api.Job, len(parsed))
	for i, p := range parsed {
		jobs[i] = p.job
	}
	return jobs
}

func readJobs(files []string, flags jobFlags) ([]parsedJob, error) {
	var jobs []parsedJob
	var faults []error
	from := map[string]string{}
	for _, name := range files {
		p, err := readJob(name, flags)
		var use *usageError
		if errors.As(err, &use) {
			return nil, err
		}
		if err != nil {
			faults = append(faults, err)
			continue
		}
		key := fileName(p.job.Namespace, p.job.ID)
		if other, ok := from[key]; ok {
			faults = append(faults, fmt.Errorf("%s and %s both hold job %q: give them different names", other, name, p.job.ID))
		}
		from[key] = name
		jobs = append(jobs, p)
	}
	return jobs, errors.Join(faults...)
}

// readFile reads a job file, or the standard input for "-".
func readFile(name string) (jobspec.File, error) {
	if name == "-" {
		src, err := io.ReadAll(io.LimitReader(os.Stdin, jobspec.MaxSize+1)) // more is told by jobspec
		if err != nil {
			return jobspec.File{}, fmt.Errorf("standard input: %w", err)
		}
		return jobspec.File{Name: "standard input", Src: src}, nil
	}
	file, err := jobspec.ReadFile(name)
	var why *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return file, fmt.Errorf("job file %s does not exist: check the path", name)
	case errors.As(err, &why):
		return file, fmt.Errorf("job file %s cannot be read: %w: name a regular file, or - for the standard input", name, why.Err)
	case err != nil:
		return file, fmt.Errorf("job file %s cannot be read: %w", name, err)
	}
	return file, nil
}

func readJob(name string, flags jobFlags) (p parsedJob, err error) {
	cfg, err := flags.config(jobspec.File{}) // wrong use is told before a wrong file
	if err != nil {
		return p, err
	}
	file, err := readFile(name)
	if err != nil {
		return p, err
	}
	cfg.File = file
	parsed, err := jobspec.Parse(cfg)
	var faults *jobspec.Error
	switch {
	case errors.As(err, &faults):
		return p, &fileError{file: file.Name, faults: faults}
	case err != nil:
		return p, fmt.Errorf("%s: %w", name, err)
	}
	if faults := configFaults(parsed, file); faults != nil {
		return p, &fileError{file: file.Name, faults: faults}
	}
	allocs, err := parsed.Allocs(jobspec.AllocOptions{Time: time.Now().UTC()})
	if err != nil {
		return p, fmt.Errorf("%s: %w", name, err)
	}
	p = parsedJob{name, file, parsed, api.Job{Namespace: parsed.Namespace, ID: parsed.ID, Allocs: allocs}}
	if p.job.Namespace == "" {
		p.job.Namespace = spec.DefaultNamespace
	}
	return p, nil
}

// configFaults tells what is wrong with config blocks, as far as it can be known
// before the tasks start, of tasks whose driver is linked into this program.
func configFaults(j *jobspec.Job, file jobspec.File) *jobspec.Error {
	schemas := map[string]*driver.Schema{}
	for _, f := range (nodeConfig{}).drivers() {
		if d, err := f(nil); err == nil { // only to ask for its schema
			schemas[d.Info().Name] = d.Info().TaskSchema
		}
	}
	var all jobspec.Error
	for _, g := range j.Groups {
		for i, t := range g.Alloc.Tasks {
			schema := schemas[t.Driver]
			if schema == nil {
				continue
			}
			for _, err := range parts(driverconfig.Validate(schema, t.Config, t.Origin)) {
				all.Diagnostics = append(all.Diagnostics, diagnostic(err, t.Name, g.Tree.All("task")[i].Range, file))
			}
		}
	}
	if len(all.Diagnostics) == 0 {
		return nil
	}
	return &all
}

// diagnostic shows a fault of a task's config with its line; where that is not
// known, because there is no config, the task's.
func diagnostic(err error, task string, at jobspec.Range, file jobspec.File) jobspec.Diagnostic {
	d := jobspec.Diagnostic{
		Severity: jobspec.SeverityError, Summary: fmt.Sprintf("Wrong configuration of task %q", task), Detail: err.Error(), File: file.Name,
		Line: at.Line, Column: at.Column, EndLine: at.EndLine, EndColumn: at.EndColumn, Width: max(1, at.EndColumn-at.Column),
	}
	var e *driverconfig.Error
	if errors.As(err, &e) {
		d.Detail = e.Path + ": " + e.Problem
		if e.Origin.Line > 0 {
			d.Line, d.Column, d.EndLine, d.EndColumn, d.Width = e.Origin.Line, e.Origin.Column, e.Origin.Line, e.Origin.Column+1, 1
		}
	}
	d.Source = sourceLine(file, d.Line)
	return d
}

// sourceLine is the n-th line of a file; empty if it has none.
func sourceLine(file jobspec.File, n int) string {
	if lines := strings.Split(string(file.Src), "\n"); n > 0 && n <= len(lines) {
		return strings.TrimRight(lines[n-1], "\r")
	}
	return ""
}
