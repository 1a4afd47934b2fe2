// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package creator

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
)

func TestNames(t *testing.T) {
	seen := map[string]string{}
	long := strings.Repeat("x", 300)
	for _, id := range []string{"a", "a/b/0", "a+b", "a+2Fb", ".", "..", "a.b", "ü", "a/b.0", long, long + "y", strings.Repeat("/", 100), strings.Repeat("/", 101), "\x00"} {
		n := Name(id)
		if len(n) > 200 || n == "" || n == "." || n == ".." || strings.Trim(n, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.+") != "" {
			t.Errorf("%q: %q", id, n)
		}
		if was, ok := seen[n]; ok {
			t.Errorf("%q and %q share %q", id, was, n)
		}
		seen[n] = id
	}
}

// once is a socket that ends after what it holds.
type once struct{ bytes.Buffer }

func TestResults(t *testing.T) {
	var o once
	if err := Fail(&o, fmt.Errorf("no %q: %w", "command", &fs.PathError{Op: "open", Path: "/x", Err: syscall.ENOENT})); err != nil {
		t.Fatal(err)
	}
	res, err := ReadResult(&o)
	if err != nil || res.Errno != syscall.ENOENT || !strings.Contains(res.Err, "command") || res.PID != 0 {
		t.Errorf("%+v %v", res, err)
	}
	if err := Fail(&o, errors.New(strings.Repeat("long ", maxResult))); err != nil {
		t.Fatal(err)
	}
	if res, err := ReadResult(&o); err != nil || res.Errno != 0 || res.Err == "" {
		t.Errorf("%+v %v", res, err)
	}
	if err := WriteSpec(&o, []byte("spec")); err != nil {
		t.Fatal(err)
	}
	if b, err := ReadSpec(&o); err != nil || string(b) != "spec" {
		t.Errorf("%q %v", b, err)
	}
	if err := Done(&o, 1<<30); err == nil {
		t.Error("a process that is not there")
	}
	for _, text := range []string{"", "+", "+1 5", "+7 0", "+7", "+x 5", "-5", "-x y", "-5 ", "?", "-99999 text", "+-7 4"} {
		if res, err := parse(text); err == nil {
			t.Errorf("%q: %+v", text, res)
		}
	}
	if res, err := parse("+7 12345"); err != nil || res != (Result{PID: 7, Start: 12345}) {
		t.Errorf("%+v %v", res, err)
	}
}

func FuzzReadResult(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x06+70 12"))
	f.Add([]byte("\x00\x00\x00\x06-2 gone"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		res, err := ReadResult(bytes.NewReader(b))
		if err == nil && (res.PID > 1) == (res.Err != "") {
			t.Errorf("%q: %+v", b, res)
		}
	})
}
