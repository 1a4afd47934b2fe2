// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// write replaces a file: beside it, on disk, renamed, the directory on disk.
func (s *jobStore) write(name string, v any) error {
	if err := s.prepare(name, v); err != nil {
		return err
	}
	path := filepath.Join(s.dir, name)
	if err := errors.Join(os.Rename(path+".tmp", path), syncDir(s.dir)); err != nil {
		return unwritten(err)
	}
	return nil
}

// prepare writes the new content beside the file; a failure leaves nothing.
func (s *jobStore) prepare(name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("job store: %w", err)
	}
	path := filepath.Join(s.dir, name) + ".tmp"
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return unwritten(err)
	}
	_, err = f.Write(append(data, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(path)
		return unwritten(err)
	}
	return nil
}

// syncDir makes a rename last. Systems that cannot are not asked twice.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, fs.ErrInvalid) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}

// fileName is the name of a job's file: readable, and never too long.
func fileName(namespace, id string) string {
	name := escape(namespace) + "." + escape(id)
	if len(name) > 200 {
		sum := sha256.Sum256([]byte(namespace + "\x00" + id))
		name = name[:100] + "-" + hex.EncodeToString(sum[:16])
	}
	return name + ".json"
}

// escape keeps letters, digits, dash and underscore, and writes all other bytes
// as %XX, so that a name is one path element whatever it holds.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
