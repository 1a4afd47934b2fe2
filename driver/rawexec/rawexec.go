// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package rawexec is the driver "raw_exec": plain processes of the host, without
// isolation. Its tasks belong to the supervisor of their scope (package
// supervisor), which holds their exits and logs while no agent lives.
//
//	task {
//	  driver = "raw_exec"
//	  user   = "www-data"                        # default: the agent's own
//	  config {
//	    command         = "bin/server"           # required
//	    args            = ["-port", "${NOMAD_PORT_http}"]
//	    work_dir        = "local"                # default: the task's directory
//	    denied_envvars  = ["AWS_*"]              # not passed on
//	    no_cgroups      = false                  # track by session and mark only
//	    oom_score_adj   = 0                      # to 1000
//	  }
//	}
//
// Rules a job can rely on:
//
//   - command is looked for as local/<command> in the task's directory, as
//     <command> there and, if it has no slash, in the PATH of the task's
//     environment (without one: the usual directories). With a leading slash it
//     is taken as it is. A file of the task's own directory is made executable if
//     it is not; no link out of that directory is followed for that.
//   - args and the environment are passed on as they are. The task gets nothing
//     else: no variable, descriptor or terminal of the agent's or supervisor's.
//   - user is a name or uid, with ":<group>" if not the user's own groups. It is
//     looked up here; the supervisor gets numbers.
//   - The cgroup tracks and kills; it sets no limit.
//   - The stop signal (SIGTERM unless the job's kill_signal says otherwise) goes
//     to the main process; SIGKILL after the kill timeout goes to all. A task
//     ends with everything it started: children in the background, in sessions
//     of their own and double forks included.
//   - A command that is run beside the task has its user, directory, environment
//     and cgroup, and a session of its own.
//   - An exit nobody saw is code -1 with a text, never 0.
//
// Because a task can do what the agent's user can, the driver is off until the
// host sets Config.Enabled. Tasks that run when it is switched off are still
// recovered, stopped and destroyed.
package rawexec

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/internal/supervised"
	"github.com/nodekeep/nodekeep/internal/account"
	"github.com/nodekeep/nodekeep/supervisor"
)

// Name is how jobs name the driver.
const Name = "raw_exec"

const version = "1.0.0"

// Config is what the host decides. The zero value is a driver that refuses.
type Config struct {
	Enabled bool
	// HowToEnable is what users of the host do to have Enabled set, such as "start the
	// node with --enable-raw-exec", for messages. Default: that field's name.
	HowToEnable string
	NoCgroups   bool // for every task, whatever it says
	// DeniedEnv are variables no task gets: shell patterns, such as "AWS_*".
	DeniedEnv []string
	// DeniedUsers may not be run as: names, uids and ranges of uids such as
	// "0-999". A task without a user is the agent's user, which is checked too.
	DeniedUsers []string
	// DynamicUsers says that a task without a user may be given one of its own, if
	// the host gives out such. Otherwise it runs as the agent's.
	DynamicUsers bool
}

// validate lists all faults.
func (c Config) validate() error {
	errs := []error{patterns("Config.DeniedEnv", c.DeniedEnv)}
	for i, u := range c.DeniedUsers {
		if _, err := parseDenied(u); err != nil {
			errs = append(errs, fmt.Errorf("rawexec: Config.DeniedUsers[%d] %q: %w", i, u, err))
		}
	}
	return errors.Join(errs...)
}

// New returns what an agent makes the driver with. Where there are no
// supervisors (no Linux, so no pool) the driver is made too, and says so.
func New(cfg Config) func(*supervisor.Pool) (driver.Driver, error) {
	return func(pool *supervisor.Pool) (driver.Driver, error) {
		if err := cfg.validate(); err != nil {
			return nil, err
		}
		return &rawexec{Tasks: supervised.New(Name, "rawexec", false, pool), cfg: cfg, users: &account.Book{}}, nil
	}
}

// rawexec implements driver.Driver, Signaler, Inspector, Execer and Meter.
type rawexec struct {
	*supervised.Tasks
	cfg   Config
	users *account.Book
}

// Info implements driver.Driver.
func (d *rawexec) Info() driver.Info {
	return driver.Info{
		Name: Name, Version: version,
		Capabilities: driver.Capabilities{SendSignals: true, Exec: true, IdempotentStart: true, FSIsolation: driver.FSNone,
			NetIsolation: []string{"host"}, NoMounts: true, DynamicUsers: d.cfg.DynamicUsers},
		TaskSchema: driver.Object(map[string]*driver.Schema{
			"command":        driver.Attr("string", true),
			"args":           driver.Attr("list(string)", false),
			"work_dir":       driver.Attr("string", false),
			"denied_envvars": driver.Attr("list(string)", false),
			"no_cgroups":     driver.Default(driver.Attr("bool", false), "false"),
			"oom_score_adj":  driver.Default(driver.Attr("number", false), "0"),
		}),
	}
}

// Fingerprint implements driver.Driver. Nothing changes after the first value.
func (d *rawexec) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	fp := driver.Fingerprint{Health: driver.Healthy, Description: "Healthy",
		Attributes: map[string]string{"driver.raw_exec": "1", "driver.raw_exec.version": version}}
	err := d.Supported()
	if err == nil {
		err = d.enabled()
	}
	if err != nil {
		fp = driver.Fingerprint{Health: driver.Undetected, Description: err.Error()}
	}
	ch := make(chan driver.Fingerprint, 1)
	ch <- fp
	context.AfterFunc(ctx, func() { close(ch) })
	return ch, nil
}

func (d *rawexec) enabled() error {
	if !d.cfg.Enabled {
		how := d.cfg.HowToEnable
		if how == "" {
			how = "set rawexec.Config.Enabled"
		}
		return fmt.Errorf("rawexec: turned off on this node, for its tasks run without isolation: %s", how)
	}
	return nil
}

func patterns(field string, list []string) error {
	var errs []error
	for i, p := range list {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			errs = append(errs, fmt.Errorf("rawexec: %s[%d] %q: must be a name or a shell pattern such as AWS_*", field, i, p))
		}
	}
	return errors.Join(errs...)
}

// denied says whether a name matches one of the patterns.
func denied(name string, lists ...[]string) bool {
	for _, list := range lists {
		if slices.ContainsFunc(list, func(p string) bool { ok, _ := path.Match(p, name); return ok }) {
			return true
		}
	}
	return false
}
