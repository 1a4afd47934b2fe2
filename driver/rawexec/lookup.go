// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package rawexec

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodekeep/nodekeep/driver"
)

// usualPath is searched where the task's environment has no PATH.
const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// workDir is where the task starts; it must be there.
func workDir(dirs driver.Dirs, dir string) (string, error) {
	switch {
	case dir == "" && dirs.Task == "":
		return "/", nil
	case !filepath.IsAbs(dir):
		dir = filepath.Join(dirs.Task, dir)
	}
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("rawexec: config.work_dir %q: the task has no directory, so it must be an absolute path", dir)
	}
	if st, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("rawexec: config.work_dir: %w", err)
	} else if !st.IsDir() {
		return "", fmt.Errorf("rawexec: config.work_dir %q is not a directory", dir)
	}
	return dir, nil
}

// program finds the file to run (see the package's doc). The error says where it
// was looked for and what was wrong with what was found.
func program(taskDir, command string, env []string) (string, error) {
	var places []string
	if filepath.IsAbs(command) {
		places = []string{filepath.Clean(command)}
	} else {
		if taskDir != "" && filepath.IsLocal(command) {
			places = append(places, filepath.Join(taskDir, "local", command), filepath.Join(taskDir, command))
		}
		if !strings.Contains(command, "/") {
			for _, dir := range filepath.SplitList(variable(env, "PATH", usualPath)) {
				if filepath.IsAbs(dir) { // what is relative to a directory of ours is none of the task's
					places = append(places, filepath.Join(dir, command))
				}
			}
		}
	}
	var unfit []error
	for _, p := range places {
		err := runnable(p, taskDir)
		if err == nil {
			return p, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			unfit = append(unfit, err)
		}
	}
	switch {
	case len(unfit) > 0:
		return "", fmt.Errorf("rawexec: config.command %q cannot be run: %w", command, errors.Join(unfit...))
	case len(places) == 0:
		return "", fmt.Errorf("rawexec: config.command %q leads out of the task's directory: %w", command, fs.ErrNotExist)
	}
	return "", fmt.Errorf("rawexec: config.command %q: no such program, looked for as %s: %w", command, strings.Join(once(places), ", "), fs.ErrNotExist)
}

// once is a list without what is in it already: a PATH may name a directory twice.
func once(list []string) (out []string) {
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// runnable says whether path is a program, and makes it one if it is a file of
// the task's own. Whether the task's user may run it is the kernel's to say.
func runnable(path, taskDir string) error {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		if errors.Is(err, errNotDir) {
			err = fs.ErrNotExist
		}
		return err
	case st.IsDir(): // "local" may well be a program in PATH
		return fs.ErrNotExist
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", path)
	case st.Mode()&0o111 != 0:
		return nil
	}
	rel, err := filepath.Rel(taskDir, path)
	if taskDir == "" || err != nil || !filepath.IsLocal(rel) {
		return fmt.Errorf("%s is not executable", path)
	}
	if err := makeExecutable(taskDir, rel); err != nil {
		return fmt.Errorf("%s is not executable and cannot be made so: %w", path, err)
	}
	return nil
}

// makeExecutable gives x to whoever has r. The task can write to its directory:
// no link that leads out of it is followed, and no file is changed that has
// another name, which may be elsewhere.
func makeExecutable(taskDir, rel string) error {
	root, err := os.OpenRoot(taskDir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	f, err := root.OpenFile(rel, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only looked at
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() || links(st) > 1 {
		return errors.New("it has another name or is no file")
	}
	perm := st.Mode().Perm()
	return f.Chmod(perm | perm&0o444>>2)
}

// variable is the value of the last K=V of that name, or what stands in for it.
func variable(env []string, name, otherwise string) string {
	for _, kv := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return otherwise
}
