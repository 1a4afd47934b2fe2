// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

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

// ParseConfig is what Parse works on. Only File is needed.
type ParseConfig struct {
	File     File              // HCL, or the API's JSON: it begins with {
	Vars     map[string]string // -var: the strongest
	VarFiles []File            // lines of name = value, or a JSON object; a later one wins
	Env      []string          // K=V; those that begin with EnvPrefix set variables

	// Lenient makes warnings of names that this package does not know, and of
	// variables that the file does not declare.
	Lenient bool

	// Files is what file(), templatefile() and their like read, nil: they are
	// errors. A name is joined to Dir, the slash-separated path in Files that
	// relative names are relative to; absolute names are below the root of Files.
	// os.DirFS("/") and the working directory are what people expect of a shell;
	// os.Root.FS() of one directory lets nothing out of it.
	Files fs.FS
	Dir   string
	// Getenv is what env() and pathexpand() see; nil: they are errors.
	Getenv func(name string) (string, bool)
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

	Tree     *Block       // all of the job, also what has no field; what HCL and JSON write
	Warnings []Diagnostic // what was read with a doubt, in the order of the file
}

// Group is what runs together.
type Group struct {
	Name  string
	Count int
	// Alloc is what each of the group's allocs is, without id, index and defaults.
	// It has no tasks where a scheduler adds them (a gateway): no alloc is made of it.
	Alloc *spec.Alloc
	Tree  *Block
}

// ReadFile reads a regular file of at most MaxSize bytes; what is larger comes cut
// one byte beyond it, for Parse to tell. Devices and pipes, which may have no end
// or never begin, are refused: hand Parse what a pipe had in File.Src.
func ReadFile(name string) (File, error) {
	st, err := os.Stat(name) // before it is opened, which a FIFO may block
	switch {
	case err != nil:
		return File{}, err
	case st.IsDir():
		return File{}, &fs.PathError{Op: "read", Path: name, Err: errors.New("is a directory")}
	case !st.Mode().IsRegular():
		return File{}, &fs.PathError{Op: "read", Path: name, Err: errors.New("is a device or a pipe")}
	}
	f, err := os.Open(name)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	src, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	return File{Name: name, Src: append([]byte{}, src...)}, err
}

// Parse reads a job file. What is wrong with it is an *Error that tells all
// faults at once; any other error is one of reading a file. Parse is pure but for
// reading files without Src and what Files and Getenv let in; functions such as
// timestamp and uuidv4 give another value each time. Time and memory are bounded
// whatever the file says. The job shares nothing with cfg.
func Parse(cfg ParseConfig) (*Job, error) {
	p := newParser(cfg)
	src, ok := p.read(cfg.File)
	if !ok {
		return nil, p.result()
	}
	var tree *Block
	if isJSON(src) {
		tree = p.fromJSON(src)
	} else {
		tree = p.fromHCL(src)
	}
	if tree == nil || p.failed != nil {
		return nil, p.result()
	}
	p.canonical(tree)
	job := p.build(tree) // also of what is left after faults: it finds others
	if len(p.diags.all) == 0 {
		p.validate(job)
	}
	if err := p.result(); err != nil {
		return nil, err
	}
	job.Warnings = inFileOrder(p.diags.warnings)
	return job, nil
}

// parser reads one job file.
type parser struct {
	cfg         ParseConfig
	diags       *diagnostics
	eval        *evaluator
	budget      *budget
	nanoseconds bool             // durations may be bare numbers, as in JSON
	where       map[string]place // paths in spec, below "groups[i].", to where they are written
	restart     spec.RestartPolicy
	failed      error // of reading a file
}

// place is where a field of spec is written, and under what name.
type place struct {
	name string
	Range
}

func newParser(cfg ParseConfig) *parser {
	p := &parser{cfg: cfg, where: map[string]place{}, diags: &diagnostics{}, budget: &budget{}}
	files := &fileFuncs{fsys: cfg.Files, dir: cfg.Dir, getenv: cfg.Getenv}
	p.eval = &evaluator{
		diags: p.diags, budget: p.budget, files: files, funcs: files.all(functions()),
		ctx: &hcl.EvalContext{Variables: map[string]cty.Value{"var": cty.EmptyObjectVal, "local": cty.EmptyObjectVal}},
	}
	return p
}

func (p *parser) result() error {
	if p.failed != nil {
		return p.failed
	}
	return p.diags.err()
}

// read reads f; not ok if that failed, or if it is too large to look at.
func (p *parser) read(f File) ([]byte, bool) {
	if f.Src == nil {
		var err error
		if f, err = ReadFile(f.Name); err != nil {
			p.failed = fmt.Errorf("jobspec: %w", err)
			return nil, false
		}
	}
	p.diags.source(f.Name, f.Src)
	return f.Src, len(f.Src) <= MaxSize || p.diags.check(f.Name, f.Src)
}

// fromHCL reads a job file in HCL; nil if there is no job in it.
func (p *parser) fromHCL(src []byte) *Block {
	body := p.syntax(p.cfg.File.Name, src)
	if body == nil {
		return nil
	}
	root := language()
	blocks := map[string]hclsyntax.Blocks{}
	for _, a := range inOrder(body.Attributes) {
		p.unknown(a.NameRange, "argument", a.Name, root)
	}
	for _, b := range body.Blocks {
		if root.child(b.Type) == nil {
			p.unknown(b.TypeRange, "block", b.Type, root)
		}
		blocks[b.Type] = append(blocks[b.Type], b)
	}
	p.variables(blocks)
	p.locals(blocks["locals"])
	file := &Block{lang: root}
	firsts := map[string]hcl.Range{}
	for _, b := range blocks["job"] {
		p.child(file, root, source{b.Type, b.Labels, b.Body, b.DefRange(), b.LabelRanges}, p.eval, firsts)
	}
	if len(blocks["job"]) == 0 {
		start := hcl.Range{Filename: p.cfg.File.Name, Start: hcl.InitialPos, End: hcl.InitialPos}
		p.diags.add(start, "No job", "A job file has one job block: job \"name\" { … }")
	}
	return file.First("job")
}

// validate finds what only the whole shows, and points to where it is written.
func (p *parser) validate(job *Job) {
	if job.ID == "" {
		p.diags.add(p.where["job_id"].Range.hcl(), "Job without a name", "The name of a job cannot be empty.")
	}
	for i := range job.Groups {
		if len(job.Groups[i].Alloc.Tasks) == 0 {
			continue
		}
		a := job.alloc(&job.Groups[i], 0)
		a.ID = "x"
		for _, f := range spec.Faults(a.Validate()) {
			text := f.Problem
			switch v := f.Value.(type) {
			case nil:
			case string:
				text = fmt.Sprintf("%.80q %s", v, text)
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
			p.diags.add(at.Range.hcl(), "Invalid "+at.name, "%s.", text)
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
