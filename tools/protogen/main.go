// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Command protogen compiles the module's .proto files and writes the Go code
// beside them. Compiler and generators are pinned in the module file of this
// directory, so nothing is installed by hand.
//
//	go run -C tools/protogen . ../..          # write
//	go run -C tools/protogen . -check ../..   # fail if anything is not fresh
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

const module = "github.com/nodekeep/nodekeep"

func main() {
	check := flag.Bool("check", false, "compare instead of writing")
	flag.Parse()
	if err := run(context.Background(), flag.Arg(0), *check); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root string, check bool) error {
	names, err := protos(root)
	if err != nil {
		return err
	}
	req, err := compile(ctx, root, names)
	if err != nil {
		return err
	}
	fresh := map[string][]byte{}
	for _, gen := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		if err := generate(ctx, gen, req, fresh); err != nil {
			return err
		}
	}
	return settle(root, fresh, check)
}

// protos are the module's own, by their paths below root.
func protos(root string) (names []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root && d.Name() != "..":
			return fs.SkipDir
		case strings.HasSuffix(path, ".proto"):
			rel, err := filepath.Rel(root, path)
			names = append(names, filepath.ToSlash(rel))
			return err
		}
		return nil
	})
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("no .proto file below %q: name the module's root", root)
	}
	return names, err
}

// compile makes the request that a generator reads: the files and, before them,
// all they import.
func compile(ctx context.Context, root string, names []string) (*pluginpb.CodeGeneratorRequest, error) {
	c := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := c.Compile(ctx, names...)
	if err != nil {
		return nil, err
	}
	req := &pluginpb.CodeGeneratorRequest{FileToGenerate: names, Parameter: proto.String("module=" + module)}
	seen := map[string]bool{}
	var add func(protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		req.ProtoFile = append(req.ProtoFile, descriptor(f))
	}
	for _, f := range files {
		add(f)
	}
	return req, nil
}

func descriptor(f protoreflect.FileDescriptor) *descriptorpb.FileDescriptorProto {
	if r, ok := f.(interface {
		FileDescriptorProto() *descriptorpb.FileDescriptorProto
	}); ok {
		return r.FileDescriptorProto()
	}
	return protodesc.ToFileDescriptorProto(f)
}

func generate(ctx context.Context, tool string, req *pluginpb.CodeGeneratorRequest, out map[string][]byte) error {
	in, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "tool", tool)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	raw, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", tool, err)
	}
	var resp pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(raw, &resp); err != nil {
		return fmt.Errorf("%s: %w", tool, err)
	}
	if resp.Error != nil {
		return fmt.Errorf("%s: %s", tool, resp.GetError())
	}
	for _, f := range resp.File {
		out[f.GetName()] = []byte(f.GetContent())
	}
	return nil
}

// settle writes what was generated, or says what is not as it should be; what no
// .proto file explains any more is stale too.
func settle(root string, fresh map[string][]byte, check bool) error {
	var stale []string
	for name, want := range fresh {
		path := filepath.Join(root, filepath.FromSlash(name))
		if got, err := os.ReadFile(path); err == nil && bytes.Equal(got, want) {
			continue
		}
		stale = append(stale, name)
		if !check {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				return err
			}
		}
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".pb.go") {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if name := filepath.ToSlash(rel); err == nil && fresh[name] == nil {
			stale = append(stale, name)
			if !check {
				err = os.Remove(path)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	if check && len(stale) > 0 {
		slices.Sort(stale)
		return errors.New("not fresh, run make proto: " + strings.Join(stale, ", "))
	}
	return nil
}
