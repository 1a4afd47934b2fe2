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
	"slices"
	"strings"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/jobspec"
)

var jobCommand = command{
	name: "job", args: "validate|plan|format FILE…", short: "checks job files, shows what they would run, formats and converts them",
	long: `validate shows what is wrong, line by line; exit code 0 if nothing is.
plan shows the allocs and tasks that would run, and what nodekeep does not act on.
format prints a file in the usual layout, as it is; with --hcl as the job that it
makes, without variables and expressions; with --json as the form of Nomad's API.
It reads both forms.`,
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		var flags jobFlags
		flags.bind(fs)
		hcl := fs.Bool("hcl", false, "format: print the evaluated job in HCL")
		write := fs.Bool("write", false, "format: write the result to the file instead of printing it")
		return func(ctx context.Context, args []string) error {
			verbs := map[string]func([]string) error{
				"validate": func(files []string) error { return a.validateJobs(ctx, files, flags) },
				"plan":     func(files []string) error { return a.planJobs(ctx, files, flags) },
				"format":   func(files []string) error { return a.formatJobs(files, flags, *hcl, *write) },
			}
			switch {
			case len(args) == 0 || verbs[args[0]] == nil:
				return usage("job can validate, plan and format: nodekeep job validate FILE")
			case len(args) == 1:
				return usage("name a job file: nodekeep job %s FILE", args[0])
			case args[0] != "format" && (*hcl || *write):
				return usage("--hcl and --write are for job format")
			}
			return verbs[args[0]](args[1:])
		}
	},
}

// validJob is what "job validate --json" prints of a file.
type validJob struct {
	File        string               `json:"file"`
	Valid       bool                 `json:"valid"`
	Job         string               `json:"job,omitempty"`
	Allocs      int                  `json:"allocs"`
	Error       string               `json:"error,omitempty"` // of a file that cannot be read
	Diagnostics []jobspec.Diagnostic `json:"diagnostics"`
}

// validateJobs checks each file. With --json everything is in the output, and
// the exit code alone says that something is wrong.
func (a *app) validateJobs(ctx context.Context, files []string, flags jobFlags) error {
	drivers := a.knownDrivers(ctx)
	if !a.json {
		parsed, err := readJobs(files, flags)
		for _, p := range parsed {
			a.warnOf(warnings(p, drivers))
			if err == nil {
				fmt.Fprintf(a.stdout, "%s: job %s is valid, %s\n", p.file, p.job.ID, count(len(p.job.Allocs), "alloc"))
			}
		}
		return err
	}
	list := make([]validJob, len(files))
	code := exitCode(0)
	for i, name := range files {
		p, err := readJob(name, flags)
		list[i] = validJob{File: name, Valid: err == nil, Job: p.job.ID, Allocs: len(p.job.Allocs), Diagnostics: []jobspec.Diagnostic{}}
		var faults *fileError
		var use *usageError
		switch {
		case err == nil:
			list[i].Diagnostics = append(list[i].Diagnostics, warnings(p, drivers)...)
			continue
		case errors.As(err, &use):
			return err
		case errors.As(err, &faults):
			list[i].Diagnostics = faults.faults.Diagnostics
		default:
			list[i].Error = err.Error()
		}
		code = 1
	}
	if err := a.printJSON(list); err != nil || code == 0 {
		return err
	}
	return code
}

// plannedJob is what "job plan --json" prints of a file.
type plannedJob struct {
	File       string         `json:"file"`
	Job        string         `json:"job"`
	Namespace  string         `json:"namespace"`
	Type       string         `json:"type"`
	Allocs     []plannedAlloc `json:"allocs"`
	NotActedOn []jobspec.Note `json:"not_acted_on"`
}

type plannedAlloc struct {
	ID    string        `json:"id"`
	Name  string        `json:"name"`
	Group string        `json:"group"`
	Tasks []plannedTask `json:"tasks"`
}

type plannedTask struct {
	Name      string `json:"name"`
	Driver    string `json:"driver"`
	Available bool   `json:"driver_available"` // on this node
	Lifecycle string `json:"lifecycle"`        // main, or when it runs beside the mains
}

func (a *app) planJobs(ctx context.Context, files []string, flags jobFlags) error {
	parsed, err := readJobs(files, flags)
	if err != nil {
		return err
	}
	drivers := a.knownDrivers(ctx)
	plans := make([]plannedJob, len(parsed))
	for i, p := range parsed {
		plans[i] = plan(p, drivers)
		a.warnOf(warnings(p, drivers))
	}
	if a.json {
		return a.printJSON(plans)
	}
	for i := range plans {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		plans[i].print(a.stdout)
	}
	return nil
}

// warnings are what was read with a doubt, and the drivers that are not known: the
// file may be for another node.
func warnings(p parsedJob, drivers []nodekeep.DriverStatus) []jobspec.Diagnostic {
	return append(slices.Clone(p.spec.Warnings), driverFaults(p, drivers, jobspec.SeverityWarning)...)
}

func plan(p parsedJob, drivers []nodekeep.DriverStatus) plannedJob {
	j := plannedJob{
		File: p.file, Job: p.job.ID, Namespace: p.job.Namespace, Type: "service", Allocs: []plannedAlloc{},
		NotActedOn: append([]jobspec.Note{}, p.spec.NotActedOn(capabilities...)...),
	}
	if p.spec.Type != "" {
		j.Type = string(p.spec.Type)
	}
	for _, al := range p.job.Allocs {
		pa := plannedAlloc{ID: al.ID, Name: al.Name, Group: al.Group}
		for _, t := range al.Tasks {
			when := "main"
			if l := t.Lifecycle; l != nil {
				when = string(l.Hook)
				if l.Sidecar {
					when += " sidecar"
				}
			}
			fault, _ := driverFault(t.Driver, drivers)
			pa.Tasks = append(pa.Tasks, plannedTask{t.Name, t.Driver, fault == "", when})
		}
		j.Allocs = append(j.Allocs, pa)
	}
	return j
}

func (j *plannedJob) print(w io.Writer) {
	fmt.Fprintf(w, "%s: %s job %s in namespace %s, %s\n", j.File, j.Type, j.Job, j.Namespace, count(len(j.Allocs), "alloc"))
	for _, al := range j.Allocs {
		fmt.Fprintf(w, "  %s  %s\n", al.Name, al.ID)
		for _, t := range al.Tasks {
			missing := ""
			if !t.Available {
				missing = "  (no driver for it on this node)"
			}
			fmt.Fprintf(w, "    %-16s %-10s %s%s\n", t.Name, t.Driver, t.Lifecycle, missing)
		}
	}
	if len(j.NotActedOn) > 0 {
		fmt.Fprintln(w, "  not acted on by this node:")
	}
	for _, n := range j.NotActedOn {
		fmt.Fprintf(w, "    %s (line %d)\n", n, n.Range.Line)
	}
}

// formatJobs formats each file.
func (a *app) formatJobs(files []string, flags jobFlags, hcl, write bool) error {
	if hcl && a.json {
		return usage("--hcl and --json are two forms: name one")
	}
	var errs []error
	for _, name := range files {
		text, err := a.format(name, flags, hcl)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if write && name != "-" {
			errs = append(errs, overwrite(name, text))
			continue
		}
		if _, err := a.stdout.Write(text); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

func (a *app) format(name string, flags jobFlags, hcl bool) ([]byte, error) {
	file, err := readFile(name)
	if err != nil {
		return nil, err
	}
	isJSON := strings.HasPrefix(strings.TrimSpace(string(file.Src)), "{")
	if !hcl && !a.json && !isJSON {
		text, err := jobspec.FormatHCL(file)
		var faults *jobspec.Error
		if errors.As(err, &faults) {
			return nil, &fileError{file: file.Name, faults: faults}
		}
		return text, err
	}
	cfg, err := flags.config(file)
	if err != nil {
		return nil, err
	}
	job, err := jobspec.Parse(cfg)
	var faults *jobspec.Error
	if errors.As(err, &faults) {
		return nil, &fileError{file: file.Name, faults: faults}
	}
	if err != nil {
		return nil, err
	}
	a.warnOf(job.Warnings)
	if hcl {
		return job.HCL(), nil
	}
	return job.JSON()
}

// overwrite replaces a file's content, if it is another.
func overwrite(name string, text []byte) error {
	old, err := os.ReadFile(name)
	if err != nil || string(old) == string(text) {
		return err
	}
	mode := fs.FileMode(0o644)
	if st, err := os.Stat(name); err == nil {
		mode = st.Mode().Perm()
	}
	return os.WriteFile(name, text, mode)
}
