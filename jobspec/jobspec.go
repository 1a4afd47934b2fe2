// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package jobspec reads job files: HCL2 with the block names that Nomad's users
// know, for what this version can run. All else is an error that shows the line.
//
//	variable "x" { type, default, description }     then var.x
//	locals { y = … }                                then local.y
//
//	job "web" {                one per file
//	  type                     service (default), batch, system, sysbatch
//	  id, name, namespace, region, datacenters, priority, meta
//	  group "api" {            one alloc for each of its count
//	    count, shutdown_delay, meta, ephemeral_disk { size }
//	    restart { attempts, interval, delay, mode }      for tasks that have none
//	    task "server" {
//	      driver, user, leader, kill_timeout, kill_signal, shutdown_delay
//	      config { … }         the driver's: any names, any blocks
//	      env, meta            a block or = { … }
//	      resources { cpu, cores, memory, memory_max, secrets }
//	      restart { … }        over the group's, one by one
//	      lifecycle { hook, sidecar }
//	      logs { max_files, max_file_size, disabled }
//	    }
//	  }
//	}
//
// Names are of two times. var.… and local.… are values of the file and are filled
// in here. All others, ${node.class} or ${NOMAD_TASK_DIR}, are known only where
// the task runs: in config, env, meta and user they stay in the text as they are
// written, and taskenv and driverconfig fill them in. $${x} is the text ${x} there.
// Where a fixed value is needed, a name of run time is an error.
//
// Values from outside are for people to set: a variable's default is weaker than
// NOMAD_VAR_x in the environment, that than a variable file, that than Vars. They
// are never read as templates: a ${x} in one is text.
//
// Functions, dynamic blocks and files in JSON are not part of this version.
package jobspec

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/zclconf/go-cty/cty"
)

// File is a file to read.
type File struct {
	Name string
	Src  []byte // nil: the file of that name is read
}

// ParseConfig is what Parse works on.
type ParseConfig struct {
	File     File
	Vars     map[string]string // -var: the strongest
	VarFiles []File            // lines of name = value; a later one wins
	Env      []string          // K=V; those that begin with EnvPrefix set variables
}

// Job is a job file, variables filled in.
type Job struct {
	ID, Name          string // the job's label, unless it says otherwise
	Namespace, Region string
	Type              spec.JobType
	Priority          int // for a scheduler; 0 if the file has none
	Datacenters       []string
	Meta              map[string]string
	Groups            []Group
}

// Group is what runs together. Each of its Count allocs has all of its Tasks.
type Group struct {
	Name          string
	Count         int
	Meta          map[string]string
	ShutdownDelay time.Duration
	Disk          spec.EphemeralDisk
	Tasks         []spec.Task

	restart spec.RestartPolicy // what tasks that say nothing take over
}

// Parse reads a job file. What is wrong with it is an *Error that tells all
// faults at once; any other error is one of reading a file. Parse is pure but for
// reading files without Src.
func Parse(cfg ParseConfig) (*Job, error) {
	p := &parser{cfg: cfg, where: map[string]place{}}
	p.evaluator = evaluator{diags: &p.diagnostics, ctx: &hcl.EvalContext{Variables: map[string]cty.Value{
		"var": cty.EmptyObjectVal, "local": cty.EmptyObjectVal,
	}}}
	body := p.file(cfg.File)
	if body == nil {
		return nil, p.result()
	}
	blocks := map[string]hclsyntax.Blocks{}
	for _, b := range body.Blocks {
		blocks[b.Type] = append(blocks[b.Type], b)
	}
	for _, a := range inOrder(body.Attributes) {
		p.unknown(a.NameRange, "argument", a.Name, "a job file outside of blocks", topLevel(), nil)
	}
	for _, b := range body.Blocks {
		switch b.Type {
		case "job", "variable", "locals":
		default:
			p.unknown(b.TypeRange, "block", b.Type, "a job file outside of blocks", topLevel(), []string{"variables"})
		}
	}
	p.ctx.Variables["var"] = p.variables(blocks["variable"])
	p.locals(blocks["locals"])
	job := p.job(blocks["job"])
	if err := p.result(); err != nil {
		return nil, err
	}
	return job, nil
}

func topLevel() []string { return []string{"job", "locals", "variable"} }

// parser reads one job file.
type parser struct {
	evaluator
	diagnostics diagnostics
	cfg         ParseConfig
	where       map[string]place // paths in spec, below "groups[i].", to where they are written
	failed      error            // of reading a file
}

// place is where a field of spec is written, and under what name.
type place struct {
	name string
	hcl.Range
}

func (p *parser) result() error {
	if p.failed != nil {
		return p.failed
	}
	return p.diags.err()
}

// file reads and parses f; nil if that failed.
func (p *parser) file(f File) *hclsyntax.Body {
	if f.Src == nil {
		src, err := os.ReadFile(f.Name)
		if err != nil {
			p.failed = fmt.Errorf("jobspec: %w", err)
			return nil
		}
		f.Src = src
	}
	p.diags.source(f.Name, f.Src)
	if !p.diags.check(f.Name, f.Src) {
		return nil
	}
	file, diags := hclsyntax.ParseConfig(f.Src, f.Name, hcl.InitialPos)
	p.diags.hcl(diags)
	if diags.HasErrors() {
		return nil
	}
	return file.Body.(*hclsyntax.Body)
}

func (p *parser) job(blocks hclsyntax.Blocks) *Job {
	job := &Job{}
	c := child[Job]{name: "job", labels: 1, once: true, decode: func(p *parser, b *hclsyntax.Block, _ string, j *Job) {
		j.ID = b.Labels[0]
		p.where["job_id"] = place{"name", b.LabelRanges[0]}
		decode(p, &jobBlock, b.Body, "", j)
		if len(j.Groups) == 0 {
			p.diags.add(b.DefRange(), "Job without a group", "The job %q has nothing to run; it needs a group block with a task.", j.ID)
		}
	}}
	decodeChildren(p, &c, &hclsyntax.Body{Blocks: blocks}, "", job)
	if len(blocks) == 0 {
		start := hcl.Range{Filename: p.cfg.File.Name, Start: hcl.InitialPos, End: hcl.InitialPos}
		p.diags.add(start, "No job", "A job file has one job block: job \"name\" { … }")
	}
	if job.Name == "" {
		job.Name = job.ID
	}
	if len(p.diags.all) == 0 {
		p.validate(job)
	}
	return job
}

// validate finds what only the whole shows, and points to where it is written.
func (p *parser) validate(job *Job) {
	if job.ID == "" {
		p.diags.add(p.where["job_id"].Range, "Job without a name", "The name of a job cannot be empty.")
	}
	for i := range job.Groups {
		a := job.alloc(&job.Groups[i], 0)
		a.ID = "x"
		for _, f := range spec.Faults(a.Validate()) {
			text := f.Problem
			switch v := f.Value.(type) {
			case nil:
			case string:
				text = fmt.Sprintf("%q %s", v, text)
			default:
				text = fmt.Sprintf("%v %s", v, text)
			}
			if f.Allowed != "" {
				text += "; allowed: " + f.Allowed
			}
			at, exact := p.find(fmt.Sprintf("groups[%d].", i), f.Path)
			if !exact {
				text = f.Path[strings.LastIndexByte(f.Path, '.')+1:] + ": " + text
			}
			p.diags.add(at.Range, "Invalid "+at.name, "%s.", text)
		}
	}
}

// find is where the field at path of a group's allocs is written, or else the
// nearest thing around it.
func (p *parser) find(group, path string) (at place, exact bool) {
	for exact = true; ; exact = false {
		// The last one is what a task takes over from its group.
		_, inherited, _ := strings.Cut(path, "].")
		for _, key := range []string{group + path, path, group + inherited} {
			if r, ok := p.where[key]; ok && key != group {
				return r, exact
			}
		}
		i := strings.LastIndexByte(strings.TrimSuffix(path, "."), '.')
		if i < 0 {
			return p.where[group], false
		}
		path = path[:i+1]
	}
}
