// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package archtest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Medians do not tell good code from bad; the maxima do.
const (
	maxFile      = 600 // lines
	maxFunc      = 60  // lines
	maxTestFunc  = 120 // lines
	maxFields    = 20  // of a struct; the vocabulary in spec is free
	maxMethods   = 7   // of an interface
	maxExported  = 25  // names of a package; a block of one enumeration is one
	licenceFirst = "// Copyright (c) nodekeep authors\n// SPDX-License-Identifier: MPL-2.0\n\n"
)

// reporter takes a fault. where is what an exception in allow names.
type reporter func(where, format string, args ...any)

var rules = []struct {
	name  string
	check func(*tree, reporter)
}{
	{"levels", checkLevels},
	{"package doc", checkPackageDoc},
	{"package name", checkPackageName},
	{"licence", checkLicence},
	{"file size", checkFileSize},
	{"function size", checkFuncSize},
	{"struct size", checkStructSize},
	{"interface size", checkInterfaceSize},
	{"exported names", checkExported},
	{"doc comment", checkDocComments},
	{"background context", checkBackground},
	{"stored context", checkStoredContext},
	{"init", checkInit},
	{"open end", checkOpenEnds},
	{"sleep in test", checkSleep},
}

func TestRules(t *testing.T) {
	tr := load(t)
	used := map[[2]string]bool{}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			r.check(tr, func(where, format string, args ...any) {
				key := [2]string{r.name, where}
				if allow[key] == "" {
					t.Errorf("%s  [%s]", fmt.Sprintf(format, args...), where)
				}
				used[key] = true
			})
		})
	}
	for key, why := range allow {
		if !used[key] {
			t.Errorf("the exception %q is not needed any more (%s)", key, why)
		}
	}
}

func checkPackageDoc(tr *tree, report reporter) {
	for _, dir := range tr.packages() {
		documented := slices.ContainsFunc(tr.dirs[dir], func(s *source) bool {
			return !s.test && s.ast.Doc != nil && len(strings.Fields(s.ast.Doc.Text())) >= 5
		})
		if !documented {
			report(dir, "package %s has no doc comment", dir)
		}
	}
}

func checkPackageName(tr *tree, report reporter) {
	for _, dir := range tr.packages() {
		switch path.Base(dir) {
		case "util", "utils", "common", "types", "interfaces", "helper", "helpers", "misc", "base":
			report(dir, "package %s: the name says nothing", dir)
		}
	}
}

func checkLicence(tr *tree, report reporter) {
	for _, f := range tr.files {
		if !bytes.HasPrefix(f.text, []byte(licenceFirst)) && !f.generated {
			report(f.path, "%s does not begin with the two lines of the licence and an empty one", f.path)
		}
	}
}

func checkFileSize(tr *tree, report reporter) {
	for _, f := range tr.files {
		if f.lines > maxFile && !f.generated {
			report(f.path, "%s has %d lines, at most %d", f.path, f.lines, maxFile)
		}
	}
}

func checkFuncSize(tr *tree, report reporter) {
	for _, f := range tr.files {
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			most := maxFunc
			if f.forTests() {
				most = maxTestFunc
			}
			if n := tr.span(d); ok && n > most && !f.generated {
				report(f.dir+"."+funcName(fn), "%s: %s has %d lines, at most %d", tr.line(d), funcName(fn), n, most)
			}
		}
	}
}

func checkStructSize(tr *tree, report reporter) {
	tr.types(func(f *source, s *ast.TypeSpec) {
		st, ok := s.Type.(*ast.StructType)
		if n := 0; ok && f.dir != "spec" {
			for _, fl := range st.Fields.List {
				n += max(1, len(fl.Names))
			}
			if n > maxFields {
				report(f.dir+"."+s.Name.Name, "%s: %s has %d fields, at most %d", tr.line(s), s.Name.Name, n, maxFields)
			}
		}
	})
}

func checkInterfaceSize(tr *tree, report reporter) {
	tr.types(func(f *source, s *ast.TypeSpec) {
		it, ok := s.Type.(*ast.InterfaceType)
		if ok && it.Methods.NumFields() > maxMethods {
			report(f.dir+"."+s.Name.Name, "%s: %s has %d methods, at most %d", tr.line(s), s.Name.Name, it.Methods.NumFields(), maxMethods)
		}
	})
}

// types visits the package-level types that are not generated.
func (tr *tree) types(visit func(*source, *ast.TypeSpec)) {
	for _, f := range tr.files {
		if f.generated {
			continue
		}
		for _, d := range f.ast.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
				for _, s := range g.Specs {
					visit(f, s.(*ast.TypeSpec))
				}
			}
		}
	}
}

// checkExported counts the names a reader of the package's page meets. The same
// name in files for different systems is one.
func checkExported(tr *tree, report reporter) {
	for _, dir := range tr.packages() {
		names := map[string]bool{}
		for _, f := range tr.dirs[dir] {
			if f.test || f.generated || f.main() || dir == "spec" {
				continue
			}
			for _, d := range f.ast.Decls {
				exportedNames(d, names)
			}
		}
		if len(names) > maxExported {
			list := make([]string, 0, len(names))
			for n := range names {
				list = append(list, n)
			}
			slices.Sort(list)
			report(dir, "package %s exports %d names, at most %d: %s", dir, len(names), maxExported, strings.Join(list, " "))
		}
	}
}

func exportedNames(d ast.Decl, names map[string]bool) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil && d.Name.IsExported() {
			names[d.Name.Name] = true
		}
	case *ast.GenDecl:
		enum := enumType(d)
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					names[s.Name.Name] = true
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if n.IsExported() && enum != "" {
						names["(values of "+enum+")"] = true
					} else if n.IsExported() {
						names[n.Name] = true
					}
				}
			}
		}
	}
}

// enumType names the type that all values of a block share, "" if there is none.
func enumType(d *ast.GenDecl) string {
	typ := ""
	for _, s := range d.Specs {
		v, ok := s.(*ast.ValueSpec)
		if !ok || len(d.Specs) < 2 {
			return ""
		}
		id, ok := v.Type.(*ast.Ident)
		switch {
		case ok && (typ == "" || typ == id.Name):
			typ = id.Name
		case v.Type == nil && len(v.Values) == 0 && typ != "": // iota goes on
		default:
			return ""
		}
	}
	return typ
}

func checkDocComments(tr *tree, report reporter) {
	for _, f := range tr.files {
		if f.test || f.generated || f.main() {
			continue
		}
		for _, d := range f.ast.Decls {
			for _, name := range undocumented(d) {
				report(f.dir+"."+name, "%s: %s is exported and has no doc comment", tr.line(d), name)
			}
		}
	}
}

// wellKnown methods mean the same on every type.
func wellKnown(name string) bool {
	return slices.Contains([]string{"Error", "Unwrap", "Is", "As", "String", "Len", "Less", "Swap", "MarshalJSON", "UnmarshalJSON"}, name)
}

func undocumented(d ast.Decl) (names []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && d.Doc == nil && (d.Recv == nil || ast.IsExported(receiver(d)) && !wellKnown(d.Name.Name)) {
			names = append(names, funcName(d))
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() && d.Doc == nil && s.Doc == nil {
					names = append(names, s.Name.Name)
				}
			case *ast.ValueSpec:
				if s.Names[0].IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
					names = append(names, s.Names[0].Name)
				}
			}
		}
	}
	return names
}

func checkBackground(tr *tree, report reporter) {
	tr.calls("context", []string{"Background", "TODO"}, func(f *source, fn string, n ast.Node, name string) {
		if !f.test && !f.main() {
			report(f.dir+"."+fn, "%s: context.%s in a library: take the caller's", tr.line(n), name)
		}
	})
}

func checkStoredContext(tr *tree, report reporter) {
	tr.types(func(f *source, s *ast.TypeSpec) {
		st, ok := s.Type.(*ast.StructType)
		if !ok || f.test {
			return
		}
		for _, fl := range st.Fields.List {
			if sel, ok := fl.Type.(*ast.SelectorExpr); ok && isPkg(sel, "context") && sel.Sel.Name == "Context" {
				report(f.dir+"."+s.Name.Name, "%s: %s stores a context: pass it", tr.line(fl), s.Name.Name)
			}
		}
	})
}

func checkInit(tr *tree, report reporter) {
	for _, f := range tr.files {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" && !f.test && !f.generated {
				report(f.dir, "%s: init runs in every program that links the package", tr.line(d))
			}
		}
	}
}

var openEnd = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`)

func checkOpenEnds(tr *tree, report reporter) {
	for _, f := range tr.files {
		for _, g := range f.ast.Comments {
			for _, c := range g.List {
				if m := openEnd.FindString(c.Text); m != "" {
					report(f.path, "%s: %s: do it or write down why not", tr.line(c), m)
				}
			}
		}
	}
}

// virtual are the packages whose tests all run inside synctest.Test.
var virtual = []string{"taskrunner", "allocrunner"}

// checkSleep finds tests that hope. In virtual time a sleep is exact and allowed:
// inside synctest.Test, in the helpers beside it, in a virtual package.
func checkSleep(tr *tree, report reporter) {
	tr.calls("time", []string{"Sleep"}, func(f *source, fn string, n ast.Node, _ string) {
		ok := !f.forTests() || insideSynctest(f, n) || slices.Contains(virtual, f.dir) ||
			f.forTests() && !f.test && slices.Contains(f.imports, "testing/synctest") || strings.HasPrefix(fn, "Benchmark")
		if !ok {
			report(f.dir+"."+fn, "%s: %s sleeps: wait for an event, or use virtual time", tr.line(n), fn)
		}
	})
}

func insideSynctest(f *source, n ast.Node) bool {
	inside := false
	ast.Inspect(f.ast, func(m ast.Node) bool {
		if call, ok := m.(*ast.CallExpr); ok && call.Pos() <= n.Pos() && n.End() <= call.End() {
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && isPkg(sel, "synctest") {
				inside = true
			}
		}
		return !inside
	})
	return inside
}

// calls visits the uses of functions of a package, with the function they are in.
func (tr *tree) calls(pkg string, funcs []string, visit func(f *source, fn string, n ast.Node, name string)) {
	for _, f := range tr.files {
		for _, d := range f.ast.Decls {
			fn := ""
			if fd, ok := d.(*ast.FuncDecl); ok {
				fn = funcName(fd)
			}
			ast.Inspect(d, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && isPkg(sel, pkg) && slices.Contains(funcs, sel.Sel.Name) {
					visit(f, fn, sel, sel.Sel.Name)
				}
				return true
			})
		}
	}
}

func isPkg(sel *ast.SelectorExpr, name string) bool {
	id, ok := sel.X.(*ast.Ident)
	return ok && id.Name == name
}

func funcName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	return receiver(d) + "." + d.Name.Name
}

func receiver(d *ast.FuncDecl) string {
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}
