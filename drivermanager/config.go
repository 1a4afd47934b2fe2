// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivermanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/keeper"
)

// Config is what a Manager needs. The zero value is a manager without drivers.
type Config struct {
	// Launchers bring the drivers. Of several programs with one name, and of several
	// drivers with one name, that of the earliest launcher counts.
	Launchers []Launcher
	// Programs are the operator's settings, by the program's name.
	Programs map[string]Settings
	// Allow and Deny are shell patterns that the names of programs and of drivers
	// must and must not match; no Allow allows all.
	Allow, Deny []string

	// Dir is where the processes have their sockets and logs, on tmpfs if possible
	// and with a short path. Required where a launcher starts processes.
	Dir string
	// Records outlive the agent. Nil: nothing does, and processes end with Run.
	Records Records
	// EndPrograms ends processes with Run although they could be reattached to.
	EndPrograms bool
	// Env names the variables of this process that programs get. Default: PATH,
	// HOME, LANG, TZ, TMPDIR, USER, LOGNAME and the proxies'.
	Env  []string
	Node *driver.Node

	// Wait bounds how long a caller waits for a driver that is not there at the
	// moment. Default a minute.
	Wait time.Duration
	// MaxBackoff is the longest pause between two starts of a program that does not
	// stay. Default a minute.
	MaxBackoff time.Duration
	Log        hclog.Logger
}

// Settings are an operator's for one program.
type Settings struct {
	Disabled bool
	Args     []string
	Config   json.RawMessage // HCL-JSON, decoded with the driver's own schema
}

// Records keep what is needed to find processes again. A name has one record.
type Records interface {
	Load() (map[string]json.RawMessage, error)
	Save(name string, record json.RawMessage) error
	Delete(name string) error
}

// ConfigError is one fault of a Config.
type ConfigError struct{ Field, Value, Allowed string }

func (e *ConfigError) Error() string {
	return fmt.Sprintf("drivermanager: Config.%s is %q: %s", e.Field, e.Value, e.Allowed)
}

// Validate lists all faults.
func (c *Config) Validate() error {
	var errs []error
	bad := func(field, value, allowed string) { errs = append(errs, &ConfigError{field, value, allowed}) }
	for i, l := range c.Launchers {
		if l == nil {
			bad(fmt.Sprintf("Launchers[%d]", i), "", "must not be nil")
		}
	}
	for field, list := range map[string][]string{"Allow": c.Allow, "Deny": c.Deny} {
		for i, p := range list {
			if !keeper.Pattern(p) {
				bad(fmt.Sprintf("%s[%d]", field, i), p, "must be a name or a shell pattern such as docker*")
			}
		}
	}
	if c.Wait < 0 {
		bad("Wait", c.Wait.String(), "must not be negative")
	}
	if c.MaxBackoff < 0 {
		bad("MaxBackoff", c.MaxBackoff.String(), "must not be negative")
	}
	if c.Dir != "" && !filepath.IsAbs(c.Dir) {
		bad("Dir", c.Dir, "must be an absolute path")
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	if c.Wait == 0 {
		c.Wait = time.Minute
	}
	if c.MaxBackoff == 0 {
		c.MaxBackoff = time.Minute
	}
	if c.Log == nil {
		c.Log = hclog.NewNullLogger()
	}
	if c.Env == nil {
		c.Env = []string{"PATH", "HOME", "LANG", "TZ", "TMPDIR", "USER", "LOGNAME",
			"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"}
	}
	return c
}

// allowed says whether a program or driver of that name may be used.
func (c *Config) allowed(name string) bool { return keeper.Allowed(name, c.Allow, c.Deny) }
