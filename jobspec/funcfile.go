// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
)

// fileFuncs are the functions that look outside the job file, as far as the host
// lets them. A name is joined to dir and looked up below fsys, so that with a
// file system of the whole machine and its working directory everything works as
// on a shell, and with one of a directory nothing leads out of it (that of an
// os.Root also keeps links from doing so).
type fileFuncs struct {
	fsys   fs.FS
	dir    string
	getenv func(string) (string, bool)
}

var errForbidden = errors.New("functions that look outside the job file are off here; use a variable instead")

// all adds the functions to those that are pure.
func (f *fileFuncs) all(pure map[string]function.Function) map[string]function.Function {
	funcs := map[string]function.Function{}
	for name, fn := range pure {
		funcs[name] = fn
	}
	add := func(name string, result cty.Type, params int, impl func(args []string) (cty.Value, error)) {
		spec := &function.Spec{Type: function.StaticReturnType(result)}
		for range params {
			spec.Params = append(spec.Params, function.Parameter{Name: "text", Type: cty.String})
		}
		spec.Impl = func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			texts := make([]string, len(args))
			for i, a := range args {
				texts[i] = a.AsString()
			}
			return impl(texts)
		}
		funcs[name] = function.New(spec)
	}
	str := func(s string, err error) (cty.Value, error) { return cty.StringVal(s), err }
	add("file", cty.String, 1, func(a []string) (cty.Value, error) { return str(f.text(a[0])) })
	add("fileescaped", cty.String, 1, func(a []string) (cty.Value, error) { return str(f.text(a[0])) })
	add("filebase64", cty.String, 1, func(a []string) (cty.Value, error) {
		data, err := f.read(a[0])
		return str(base64.StdEncoding.EncodeToString(data), err)
	})
	add("fileexists", cty.Bool, 1, func(a []string) (cty.Value, error) { return f.exists(a[0]) })
	add("fileset", cty.Set(cty.String), 2, func(a []string) (cty.Value, error) { return f.set(a[0], a[1]) })
	add("abspath", cty.String, 1, func(a []string) (cty.Value, error) {
		if f.fsys == nil {
			return str("", errForbidden)
		}
		return str(path.Join("/", f.dir, relative(a[0], f.dir)), nil)
	})
	add("pathexpand", cty.String, 1, func(a []string) (cty.Value, error) { return str(f.expand(a[0])) })
	add("basename", cty.String, 1, func(a []string) (cty.Value, error) { return str(path.Base(a[0]), nil) })
	add("dirname", cty.String, 1, func(a []string) (cty.Value, error) { return str(path.Dir(a[0]), nil) })
	add("env", cty.String, 1, func(a []string) (cty.Value, error) {
		if f.getenv == nil {
			return str("", errForbidden)
		}
		v, _ := f.getenv(a[0])
		return str(v, nil)
	})
	return funcs
}

// relative is an absolute name as seen from dir.
func relative(name, dir string) string {
	if !path.IsAbs(name) {
		return name
	}
	return strings.Repeat("../", strings.Count(path.Clean("/"+dir), "/")) + name[1:]
}

// path is the name as fsys knows it.
func (f *fileFuncs) path(name string) (string, error) {
	if f.fsys == nil {
		return "", errForbidden
	}
	p := path.Join(f.dir, name)
	if path.IsAbs(name) {
		p = path.Clean(name)
	}
	p = strings.TrimPrefix(p, "/")
	if p == "" {
		p = "."
	}
	if !fs.ValidPath(p) {
		return "", fmt.Errorf("%q leads out of the directory that functions may read", name)
	}
	return p, nil
}

func (f *fileFuncs) read(name string) ([]byte, error) {
	p, err := f.path(name)
	if err != nil {
		return nil, err
	}
	file, err := f.fsys.Open(p)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // was only read
	if st, err := file.Stat(); err == nil && !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%q is not a regular file", name) // a FIFO would never end
	}
	data, err := io.ReadAll(io.LimitReader(file, MaxSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxSize {
		return nil, fmt.Errorf("%q has more than %d bytes", name, MaxSize)
	}
	return data, nil
}

func (f *fileFuncs) text(name string) (string, error) {
	data, err := f.read(name)
	if err != nil {
		return "", err
	}
	if !utf8.Valid(data) || strings.Contains(string(data), refOpen) || strings.Contains(string(data), refClose) {
		return "", fmt.Errorf("%q is not UTF-8 text; filebase64 reads any file", name)
	}
	return string(data), nil
}

func (f *fileFuncs) exists(name string) (cty.Value, error) {
	p, err := f.path(name)
	if err != nil {
		return cty.NilVal, err
	}
	st, err := fs.Stat(f.fsys, p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return cty.False, nil
	case err != nil:
		return cty.NilVal, err
	case st.IsDir():
		return cty.NilVal, fmt.Errorf("%q is a directory", name)
	}
	return cty.True, nil
}

// maxFiles bounds what fileset looks at.
const maxFiles = 10_000

// set is the regular files below a directory whose path matches; ** is any
// number of directories, {a,b} one of these.
func (f *fileFuncs) set(dir, pattern string) (cty.Value, error) {
	root, err := f.path(dir)
	if err != nil {
		return cty.NilVal, err
	}
	patterns := alternatives(pattern)
	found, seen := []cty.Value{}, 0
	err = fs.WalkDir(f.fsys, root, func(p string, d fs.DirEntry, err error) error {
		if seen++; seen > maxFiles {
			return fmt.Errorf("more than %d files in %q", maxFiles, dir)
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(p, root), "/")
		for _, one := range patterns {
			if ok, err := match(strings.Split(one, "/"), strings.Split(rel, "/")); ok || err != nil {
				found = append(found, cty.StringVal(rel))
				return err
			}
		}
		return nil
	})
	if err != nil {
		return cty.NilVal, err
	}
	if len(found) == 0 {
		return cty.SetValEmpty(cty.String), nil
	}
	return cty.SetVal(found), nil
}

// alternatives are the patterns that {a,b} in one stands for; maxAlternatives of
// them at most, what is more stays as it is written.
func alternatives(pattern string) []string {
	const maxAlternatives = 100
	out := []string{pattern}
	for i := 0; i < len(out); {
		inside, after, closed := strings.Cut(out[i], "}")
		open := strings.LastIndexByte(inside, '{')
		parts := strings.Split(inside[open+1:], ",")
		if !closed || open < 0 || len(out)+len(parts) > maxAlternatives {
			i++
			continue
		}
		for j, part := range parts {
			parts[j] = inside[:open] + part + after
		}
		out = slices.Replace(out, i, i+1, parts...)
	}
	return out
}

// match compares elements of a path; a run of ** counts once.
func match(pattern, name []string) (bool, error) {
	if len(pattern) == 0 {
		return len(name) == 0, nil
	}
	if pattern[0] == "**" {
		rest := pattern[1:]
		for i := range len(name) + 1 {
			if ok, err := match(rest, name[i:]); ok || err != nil {
				return ok, err
			}
		}
		return false, nil
	}
	if len(name) == 0 {
		return false, nil
	}
	if ok, err := path.Match(pattern[0], name[0]); !ok || err != nil {
		return false, err
	}
	return match(pattern[1:], name[1:])
}

func (f *fileFuncs) expand(name string) (string, error) {
	if name != "~" && !strings.HasPrefix(name, "~/") {
		return name, nil
	}
	if f.getenv == nil {
		return "", errForbidden
	}
	home, ok := f.getenv("HOME")
	if !ok {
		return "", errors.New("HOME is not set")
	}
	return home + name[1:], nil
}

// templateFile evaluates a file as a template whose names are those of an object.
// What it does not name is left to run time; it reads no further template.
func (e *evaluator) templateFile(x *hclsyntax.FunctionCallExpr) cty.Value {
	if len(x.Args) != 2 {
		e.diags.add(x.Range(), "Wrong number of arguments", "templatefile takes a file and an object of names: templatefile(\"x.tpl\", { port = 80 })")
		return none
	}
	before := len(e.diags.all)
	name, vars := e.eval(x.Args[0], true), e.eval(x.Args[1], true)
	if len(e.diags.all) > before {
		return none
	}
	if name.IsNull() || name.Type() != cty.String || vars.IsNull() || !vars.Type().IsObjectType() && !vars.Type().IsMapType() {
		e.diags.add(x.Range(), "Wrong type of value", "templatefile takes a file's name and an object.")
		return none
	}
	text, err := e.files.text(name.AsString())
	if err != nil {
		e.diags.add(x.Range(), "Error in function call", "templatefile: %v.", err)
		return none
	}
	file := name.AsString()
	e.diags.source(file, []byte(text))
	if !e.diags.check(file, []byte(text)) || !e.spend(len(text), x.Range()) {
		return none
	}
	expr, diags := hclsyntax.ParseTemplate([]byte(text), file, hcl.InitialPos)
	e.diags.hcl(diags)
	if diags.HasErrors() {
		return none
	}
	in := *e
	in.ctx = &hcl.EvalContext{Variables: vars.AsValueMap()}
	in.files = &fileFuncs{}
	if costlyCall(expr, "templatefile") {
		e.diags.add(x.Range(), "Not possible", "A template that templatefile reads cannot read another.")
		return none
	}
	return in.eval(expr, true)
}
