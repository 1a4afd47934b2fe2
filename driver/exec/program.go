// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package exec

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

const (
	creatorName = "nodekeep-exec"
	ownImage    = "/proc/self/exe"
)

// creatorProgram finds the program that makes containers; "" is our own file,
// wherever that is when it is needed.
func creatorProgram(cfg Config) (string, error) {
	if cfg.CreatorExe != "" {
		return cfg.CreatorExe, nil
	}
	own, err := os.Executable()
	if err == nil {
		beside := filepath.Join(filepath.Dir(own), creatorName)
		if st, err := os.Stat(beside); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 && beside != own {
			return beside, nil
		}
	}
	if cfg.BinDir == "" || cfg.Disabled {
		return "", nil
	}
	kept, err := keepProgram(cfg.BinDir)
	if err != nil {
		return "", fmt.Errorf("exec: keep this program in Config.BinDir: %w", err)
	}
	return kept, nil
}

// keepProgram makes our own file last in dir, under a name that an upgrade does not
// take, and removes those of earlier builds: a creator lives for a moment, and it
// is the agent that names its program. libcontainer would copy a file without a
// name at every start.
func keepProgram(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	st, err := os.Stat(ownImage)
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("%s-%x-%x", creatorName, st.ModTime().UnixNano(), st.Size())
	kept := filepath.Join(dir, name)
	old, err := filepath.Glob(filepath.Join(dir, creatorName+"-*"))
	if err != nil {
		return "", err
	}
	for _, o := range old {
		if o != kept {
			_ = os.Remove(o)
		}
	}
	if k, err := os.Stat(kept); err == nil && k.Size() == st.Size() && k.Mode()&0o111 != 0 {
		return kept, nil
	}
	own, err := os.Executable()
	if err == nil {
		if o, serr := os.Stat(own); serr == nil && os.SameFile(o, st) && os.Link(own, kept) == nil {
			return kept, nil
		}
	}
	return kept, copyProgram(kept)
}

func copyProgram(to string) error {
	from, err := os.Open(ownImage)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	f, err := os.CreateTemp(filepath.Dir(to), "."+creatorName)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	err = errors.Join(err, f.Chmod(0o755), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), to)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// creator is the program to name in a request. Our own file goes by the name it
// has, as long as that is its own, and else by us.
func (d *execDriver) creator() string {
	if d.program != "" {
		return d.program
	}
	own, err := os.Executable()
	if err == nil && !strings.HasSuffix(own, " (deleted)") {
		a, aerr := os.Stat(own)
		b, berr := os.Stat(ownImage)
		if aerr == nil && berr == nil && os.SameFile(a, b) {
			return own
		}
	}
	return fmt.Sprintf("/proc/%d/exe", os.Getpid())
}
