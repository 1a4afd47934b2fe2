// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package archtest

import (
	"bytes"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/nodekeep/nodekeep"

// source is one .go file, whatever its build constraints.
type source struct {
	path      string // slash-separated, from the module's root
	dir       string // its package's directory; "." is the root
	test      bool
	generated bool
	lines     int
	text      []byte
	ast       *ast.File
	imports   []string
}

func (s *source) main() bool { return s.ast.Name.Name == "main" }

// forTests says whether only tests run it: a test, or a package that helps them.
func (s *source) forTests() bool { return s.test || strings.HasSuffix(s.dir, "test") }

// tree is the module's source.
type tree struct {
	fset  *token.FileSet
	files []*source
	dirs  map[string][]*source
}

// line says where a node begins, for messages.
func (tr *tree) line(n ast.Node) string {
	p := tr.fset.Position(n.Pos())
	return p.Filename + ":" + strconv.Itoa(p.Line)
}

// span is how many lines a node takes.
func (tr *tree) span(n ast.Node) int {
	return tr.fset.Position(n.End()).Line - tr.fset.Position(n.Pos()).Line + 1
}

// load parses every file of this module; modules inside it have rules of their own.
func load(t *testing.T) *tree {
	t.Helper()
	root := filepath.Join("..", "..")
	tr := &tree{fset: token.NewFileSet(), dirs: map[string][]*source{}}
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if e.IsDir() {
			if rel != "." && skipDir(p, e.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // an editor's file that was just renamed
		}
		if err != nil {
			return err
		}
		return tr.add(rel, text)
	})
	require.NoError(t, err)
	require.NotEmpty(t, tr.files)
	return tr
}

func skipDir(p, name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "bin" {
		return true
	}
	_, err := os.Stat(filepath.Join(p, "go.mod"))
	return err == nil
}

func (tr *tree) add(rel string, text []byte) error {
	f, err := parser.ParseFile(tr.fset, rel, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	s := &source{
		path: rel, dir: path.Dir(rel), test: strings.HasSuffix(rel, "_test.go"),
		generated: ast.IsGenerated(f), lines: bytes.Count(text, []byte("\n")), text: text, ast: f,
	}
	for _, i := range f.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return err
		}
		s.imports = append(s.imports, p)
	}
	tr.files = append(tr.files, s)
	tr.dirs[s.dir] = append(tr.dirs[s.dir], s)
	return nil
}

// packages are the directories that hold more than tests, sorted.
func (tr *tree) packages() []string {
	var dirs []string
	for dir, files := range tr.dirs {
		if slices.ContainsFunc(files, func(s *source) bool { return !s.test }) {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return dirs
}

// local turns an import path of this module into a directory.
func local(importPath string) (dir string, ok bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}
