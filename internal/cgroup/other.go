// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package cgroup

import "errors"

type root struct {
	mode    Mode
	dir     string
	managed bool
}

func candidates(Config) ([]root, string) { return nil, "this system has no cgroups" }

func (t *Tree) enable() {}
func (t *Tree) goHome() {}

func enabledIn(string) []string { return nil }

// Make is not there on this system.
func Make(string) error { return errors.ErrUnsupported }

// Kill does nothing: no path is a cgroup on this system.
func Kill(string) {}

// Remove is not there on this system; no path is no error.
func Remove(path string) error {
	if path == "" {
		return nil
	}
	return errors.ErrUnsupported
}

// Procs returns none: no path is a cgroup on this system.
func Procs(string) []int { return nil }

// OOMKills knows nothing: no path is a cgroup on this system.
func OOMKills(string) (n int, ok bool) { return 0, false }

func children(string) []string { return nil }
func rmdir(string) error       { return errors.ErrUnsupported }

// Everywhere is path itself: this system has no hierarchies.
func Everywhere(path string) []string {
	if path == "" {
		return nil
	}
	return []string{path}
}

// Below knows no hierarchy on this system.
func Below(string) string { return "" }

// KillEach does nothing: no path is a cgroup on this system.
func KillEach([]string) {}

// RemoveEach is Remove for each.
func RemoveEach(paths []string) error {
	for _, p := range paths {
		if err := Remove(p); err != nil {
			return err
		}
	}
	return nil
}
