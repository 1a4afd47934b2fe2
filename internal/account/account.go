// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package account finds the numbers behind the user names of jobs.
package account

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"strings"
	"sync"
)

// Account is a user as the kernel knows it.
type Account struct {
	Name     string
	Home     string
	UID, GID int
	Groups   []int // supplementary ones, GID among them
}

// Book looks users up one at a time (concurrent lookups in the C library hang on
// some hosts) and remembers those it found until the program ends. The zero
// value is ready; it must not be copied.
type Book struct {
	mu    sync.Mutex
	found map[string]Account
}

// Lookup returns the account of a user given as "name", "uid", "name:group" or
// "uid:gid". A uid that no user has is accepted, with its gid equal to it where
// none is given. It may block for as long as the host's name service does.
func (b *Book) Lookup(spec string) (Account, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a, ok := b.found[spec]; ok {
		return a, nil
	}
	a, err := lookup(spec)
	if err != nil {
		return a, err
	}
	if b.found == nil {
		b.found = map[string]Account{}
	}
	b.found[spec] = a
	return a, nil
}

// Known says whether a user of this host has the uid. An error says that the host's
// name service does not answer.
func (b *Book) Known(uid int) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, err := user.LookupId(strconv.Itoa(uid))
	var unknown user.UnknownUserIdError
	if errors.As(err, &unknown) {
		return false, nil
	}
	return err == nil, err
}

func lookup(spec string) (Account, error) {
	name, group, hasGroup := strings.Cut(spec, ":")
	a, err := byName(name)
	if err != nil {
		return a, err
	}
	if !hasGroup {
		return a, nil
	}
	if a.GID, err = gid(group); err != nil {
		return a, err
	}
	a.Groups = []int{a.GID}
	return a, nil
}

func byName(name string) (Account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		n, convErr := number(name)
		if convErr != nil {
			return Account{}, fmt.Errorf("account: user %q: %w", name, err)
		}
		if u, err = user.LookupId(name); err != nil {
			return Account{Name: name, UID: n, GID: n, Groups: []int{n}}, nil
		}
	}
	a := Account{Name: u.Username, Home: u.HomeDir}
	if a.UID, err = number(u.Uid); err != nil {
		return a, fmt.Errorf("account: user %q has no numeric id here (%s)", name, u.Uid)
	}
	if a.GID, err = number(u.Gid); err != nil {
		return a, fmt.Errorf("account: user %q has no numeric group here (%s)", name, u.Gid)
	}
	ids, err := u.GroupIds()
	if err != nil {
		return a, fmt.Errorf("account: groups of %q: %w", name, err)
	}
	for _, id := range ids {
		if n, err := number(id); err == nil {
			a.Groups = append(a.Groups, n)
		}
	}
	return a, nil
}

func gid(group string) (int, error) {
	if n, err := number(group); err == nil {
		return n, nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, fmt.Errorf("account: group %q: %w", group, err)
	}
	return number(g.Gid)
}

// number reads a uid or gid. The kernel's have 32 bits, and what is beyond would
// come out as another one, such as root's; the last means "leave it as it is".
func number(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err == nil && n == 1<<32-1 {
		err = strconv.ErrRange
	}
	return int(n), err
}
