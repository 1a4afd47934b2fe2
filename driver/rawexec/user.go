// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package rawexec

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/account"
	"github.com/nodekeep/nodekeep/supervisor"
)

// user resolves names to the numbers that the supervisor needs.
func (d *rawexec) user(name string, sp *supervisor.Spec) error {
	a := account.Account{Name: "", UID: os.Geteuid(), GID: os.Getegid()}
	if name != "" {
		var err error
		if a, err = d.users.Lookup(name); err != nil {
			return lookupError(name, err)
		}
	}
	for _, entry := range d.cfg.DeniedUsers {
		r, err := parseDenied(entry)
		if err != nil || r.holds(a.UID) || entry == a.Name {
			return fmt.Errorf("rawexec: uid %d (user %q of the job; \"\" is the agent's) may not be used on this node (denied: %s)",
				a.UID, name, strings.Join(d.cfg.DeniedUsers, ", "))
		}
	}
	if euid := os.Geteuid(); euid > 0 && euid != a.UID {
		return fmt.Errorf("rawexec: user %q: the agent runs as uid %d and cannot become another: run it as root", name, euid)
	}
	if name != "" {
		sp.SetUser, sp.UID, sp.GID, sp.Groups = true, a.UID, a.GID, a.Groups
	}
	return nil
}

// lookupError tells a user that does not exist (final) from a name service that
// does not answer.
func lookupError(name string, err error) error {
	err = fmt.Errorf("rawexec: user %q: %w", name, err)
	var noUser user.UnknownUserError
	var noUID user.UnknownUserIdError
	var noGroup user.UnknownGroupError
	if errors.As(err, &noUser) || errors.As(err, &noUID) || errors.As(err, &noGroup) {
		return err
	}
	return driver.Recoverable(err)
}

// uids is an entry of Config.DeniedUsers.
type uids struct{ from, to int64 }

func (u uids) holds(uid int) bool { return u.from <= int64(uid) && int64(uid) <= u.to }

// parseDenied reads a name, a uid or a range of uids. A name is looked up each
// time, because users come and go; one that does not exist holds nobody.
func parseDenied(s string) (uids, error) {
	bad := errors.New("must be a user name, a uid or a range of uids such as \"0-999\"")
	if s == "" || strings.ContainsAny(s, ":/ ") {
		return uids{}, bad
	}
	low, high, isRange := strings.Cut(s, "-")
	from, err := strconv.ParseInt(low, 10, 64)
	if err != nil {
		u, err := user.Lookup(s)
		if err != nil {
			return uids{1, 0}, nil
		}
		from, err = strconv.ParseInt(u.Uid, 10, 64)
		return uids{from, from}, err
	}
	if !isRange {
		return uids{from, from}, nil
	}
	to, err := strconv.ParseInt(high, 10, 64)
	if err != nil || to < from {
		return uids{}, bad
	}
	return uids{from, to}, nil
}
