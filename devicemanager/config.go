// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package devicemanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/internal/keeper"
	"github.com/nodekeep/nodekeep/state"
)

// Config is what a Manager needs. The zero value is a manager without devices.
type Config struct {
	// Launchers bring the plugins. Of several programs with one name, and of several
	// groups with one name, that of the earliest launcher counts.
	Launchers []Launcher
	// Programs are the operator's settings, by the program's name.
	Programs map[string]Settings
	// Allow and Deny are shell patterns that the names of programs must and must not
	// match; no Allow allows all.
	Allow, Deny []string

	// Dir is where the processes have their sockets and logs, on tmpfs if possible
	// and with a short path. Required where a launcher starts processes.
	Dir string
	// Store keeps who has what. Nil: it is forgotten with the Manager.
	Store state.Store
	// Env names the variables of this process that programs get. Default: PATH,
	// HOME, LANG, TZ, TMPDIR, LD_LIBRARY_PATH.
	Env []string

	// Wait bounds how long Ready waits for first fingerprints. Default a minute.
	Wait time.Duration
	// Patience is how long a task waits for a plugin that is silent and for a device
	// that another task has. Default 30 s.
	Patience time.Duration
	// MaxBackoff is the longest pause between two starts of a program that does not
	// stay. Default a minute.
	MaxBackoff time.Duration
	Log        hclog.Logger
}

// Settings are an operator's for one program.
type Settings struct {
	Disabled bool
	Args     []string
	Config   json.RawMessage // HCL-JSON, decoded with the plugin's own schema
}

// ConfigError is one fault of a Config.
type ConfigError struct{ Field, Value, Allowed string }

func (e *ConfigError) Error() string {
	return fmt.Sprintf("devicemanager: Config.%s is %q: %s", e.Field, e.Value, e.Allowed)
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
	for _, l := range []struct {
		field    string
		patterns []string
	}{{"Allow", c.Allow}, {"Deny", c.Deny}} {
		for i, p := range l.patterns {
			if !keeper.Pattern(p) {
				bad(fmt.Sprintf("%s[%d]", l.field, i), p, "must be a name or a shell pattern such as nvidia*")
			}
		}
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"Wait", c.Wait}, {"Patience", c.Patience}, {"MaxBackoff", c.MaxBackoff}} {
		if d.value < 0 {
			bad(d.field, d.value.String(), "must not be negative")
		}
	}
	if c.Dir != "" && !filepath.IsAbs(c.Dir) {
		bad("Dir", c.Dir, "must be an absolute path")
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Wait, time.Minute)
	def(&c.Patience, 30*time.Second)
	def(&c.MaxBackoff, time.Minute)
	if c.Log == nil {
		c.Log = hclog.NewNullLogger()
	}
	if c.Env == nil {
		c.Env = []string{"PATH", "HOME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH"}
	}
	return c
}

// allowed says whether a program of that name may be used.
func (c *Config) allowed(name string) bool { return keeper.Allowed(name, c.Allow, c.Deny) }
