// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// ports is a pool of ports in a directory: a file named like the port holds its
// owner's name. It outlives the agent, as whatever a hook acquires should.
type ports struct {
	dir         string
	first, last int
}

// take returns the owner's port, the one it has or a free one.
func (p *ports) take(owner string) (int, error) {
	if n, err := p.of(owner); n != 0 || err != nil {
		return n, err
	}
	for n := p.first; n <= p.last; n++ {
		// Written aside and linked: the file is there with its owner or not at all.
		tmp, err := os.CreateTemp(p.dir, ".new-")
		if err != nil {
			return 0, err
		}
		_, err = tmp.WriteString(owner)
		err = errors.Join(err, tmp.Close())
		if err == nil {
			err = os.Link(tmp.Name(), p.file(n))
		}
		if gone := os.Remove(tmp.Name()); gone != nil {
			return 0, errors.Join(err, gone)
		}
		if !errors.Is(err, os.ErrExist) {
			return n, err
		}
	}
	return 0, fmt.Errorf("no port from %d to %d is free", p.first, p.last)
}

// give returns the owner's port, if it has one.
func (p *ports) give(owner string) error {
	n, err := p.of(owner)
	if n == 0 || err != nil {
		return err
	}
	return os.Remove(p.file(n))
}

// of is the owner's port, 0 if it has none.
func (p *ports) of(owner string) (int, error) {
	for n := p.first; n <= p.last; n++ {
		switch name, err := os.ReadFile(p.file(n)); {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return 0, err
		case string(name) == owner:
			return n, nil
		}
	}
	return 0, nil
}

func (p *ports) file(n int) string { return filepath.Join(p.dir, strconv.Itoa(n)) }

// held names the owners.
func (p *ports) held() (owners []string) {
	for n := p.first; n <= p.last; n++ {
		if name, err := os.ReadFile(p.file(n)); err == nil {
			owners = append(owners, string(name))
		}
	}
	return owners
}
