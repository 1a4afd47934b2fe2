// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/drivermanager"
	"github.com/nodekeep/nodekeep/hooks/core"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskenv"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// ScopeMode is how many supervisors there are. A change applies to new allocs.
type ScopeMode string

// The scope modes; the empty string is ScopeAlloc.
const (
	ScopeAlloc ScopeMode = "alloc" // one for each alloc: a supervisor's fault is one alloc's
	ScopeTask  ScopeMode = "task"  // one for each task
	ScopeNode  ScopeMode = "node"  // one for all: lightest
)

// Config is what an agent needs. DataDir is required; every other zero value is
// a default.
type Config struct {
	// DataDir holds the state file and the allocs' directories. Made 0711: tasks of
	// other users must be able to pass. One agent at a time: a second one gets
	// ErrLocked.
	DataDir string
	// RuntimeDir holds what dies with the machine: sockets, FIFOs, journals of the
	// supervisors. It should be on tmpfs. Default: /run/nodekeep/<hash of DataDir>
	// as root, else the same below $XDG_RUNTIME_DIR, else DataDir/run. While tasks
	// run under an earlier directory that one stays in use.
	RuntimeDir string

	// Drivers are those of this process. Plugins are those that are programs of
	// their own: Plugins.Launchers, such as driverplugin.Dir("/opt/plugins"). Its
	// other settings count for all drivers, by name, but Dir, Records and Log, which
	// are the agent's. Of two with one name that of this process is used.
	Drivers []DriverFunc
	Plugins drivermanager.Config
	// Devices are the plugins that find devices for tasks: Devices.Launchers, such as
	// devicemanager.InProcess(sysfs.New()) or deviceplugin.Dir("/opt/plugins"). Dir,
	// Store and Log are the agent's. Without launchers an alloc that asks for devices
	// is refused, unless Features names "devices".
	Devices devicemanager.Config
	Node    taskenv.Node // ID, Name, Datacenter and Region have defaults

	Scope         ScopeMode
	SupervisorExe string // of the small supervisor; default: beside this binary, else this binary
	CgroupSlice   string // default nodekeep.slice
	NoCgroups     bool   // track tasks by session and process group only

	// TaskHooks and AllocHooks get the built-in hooks in their order and return
	// those to run: insert, drop or reorder.
	TaskHooks  func(std []taskrunner.HookFunc) []taskrunner.HookFunc
	AllocHooks func(std []allocrunner.HookFunc) []allocrunner.HookFunc
	// Features names what the host's hooks do beyond the built-in ones, as
	// spec.Alloc.Needs calls it ("templates", "artifacts", "services", …). An alloc
	// that asks for anything else is refused.
	Features []string

	// Checks tells how the checks of services stand, for the health of allocs and for
	// tasks that wait for a healthy one; nil: no alloc has checks.
	Checks  allocrunner.Checks
	Storage Storage // volumes, and disks that move between nodes

	// DynamicUsers are uids that this agent alone uses: tasks that name no user, of
	// drivers that take such (driver.Capabilities), are given one each, and own their
	// directories. Needs root. The zero value gives none.
	DynamicUsers core.UserRange
	// StatsEvery measures all tasks all the time, for LastStats; 0: only while somebody
	// reads Stats, which costs nothing otherwise.
	StatsEvery time.Duration

	Exec           ExecPolicy    // which commands may be run beside tasks; default all
	MaxKillTimeout time.Duration // caps a task's kill timeout; default 30 s
	MaxFinished    int           // finished allocs kept for inspection; default 50, -1 keeps none
	MaxEvents      uint64        // events kept in the log; default 10,000
	EpochTTL       time.Duration // how long removals of a new epoch wait; default 30 s
	HostEnv        []string      // names of the agent's variables that tasks see; default PATH, HOME, LANG, TZ …
	Log            hclog.Logger
}

// Storage is what allocs may use beside their own directories. The zero value is
// nothing.
type Storage struct {
	// HostVolumes are the directories of this host that allocs may mount, by name. An
	// alloc that asks for any other is refused. Nil leaves volumes to the host's hooks.
	HostVolumes core.HostVolumes
	// Migrate opens the disk of al.PreviousAlloc on another node, as that node's
	// Agent.SendDisk writes it, for an alloc whose disk migrates. It is closed by the
	// agent. An error is told as an event and the alloc starts with an empty disk.
	// Nil: disks do not come from other nodes.
	Migrate func(ctx context.Context, al *spec.Alloc) (io.ReadCloser, error)
	// MigrateLimits bound what is taken from there.
	MigrateLimits allocdir.DiskLimits
}

// ConfigError is one fault of a Config.
type ConfigError struct{ Field, Value, Allowed string }

func (e *ConfigError) Error() string {
	return fmt.Sprintf("nodekeep: Config.%s is %q: %s", e.Field, e.Value, e.Allowed)
}

// validate lists all faults.
func (c *Config) validate() error {
	var errs []error
	bad := func(field, value, allowed string) { errs = append(errs, &ConfigError{field, value, allowed}) }
	if c.DataDir == "" {
		bad("DataDir", "", "must name a directory this process may write to")
	}
	if !slices.Contains([]ScopeMode{"", ScopeAlloc, ScopeTask, ScopeNode}, c.Scope) {
		bad("Scope", string(c.Scope), "must be alloc, task or node")
	}
	if c.Plugins.Dir != "" || c.Plugins.Records != nil || c.Plugins.Log != nil {
		bad("Plugins", c.Plugins.Dir, "must leave out Dir, Records and Log: they are the agent's")
	}
	errs = append(errs, c.Plugins.Validate())
	if c.Devices.Dir != "" || c.Devices.Store != nil || c.Devices.Log != nil {
		bad("Devices", c.Devices.Dir, "must leave out Dir, Store and Log: they are the agent's")
	}
	errs = append(errs, c.Devices.Validate())
	if c.MaxKillTimeout < 0 {
		bad("MaxKillTimeout", c.MaxKillTimeout.String(), "must not be negative")
	}
	if c.EpochTTL < 0 {
		bad("EpochTTL", c.EpochTTL.String(), "must not be negative")
	}
	if err := c.DynamicUsers.Validate(); err != nil {
		bad("DynamicUsers", fmt.Sprintf("%d-%d", c.DynamicUsers.Min, c.DynamicUsers.Max), err.Error())
	}
	if c.StatsEvery < 0 {
		bad("StatsEvery", c.StatsEvery.String(), "must not be negative")
	}
	if c.MaxFinished < -1 {
		bad("MaxFinished", fmt.Sprint(c.MaxFinished), "must be -1 (none), 0 (the default) or more")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Storage.HostVolumes)) {
		if p := c.Storage.HostVolumes[name].Path; !filepath.IsAbs(p) {
			bad("Storage.HostVolumes["+name+"].Path", p, "must be an absolute path")
		}
	}
	if c.SupervisorExe != "" {
		if st, err := os.Stat(c.SupervisorExe); err != nil || st.IsDir() || st.Mode()&0o111 == 0 {
			bad("SupervisorExe", c.SupervisorExe, "must be an executable file")
		}
	}
	return errors.Join(errs...)
}

// withDefaults fills what was left out. Paths become absolute.
func (c Config) withDefaults() (Config, error) {
	var err error
	if c.DataDir, err = filepath.Abs(c.DataDir); err != nil {
		return c, fmt.Errorf("nodekeep: Config.DataDir: %w", err)
	}
	if c.RuntimeDir != "" {
		if c.RuntimeDir, err = filepath.Abs(c.RuntimeDir); err != nil {
			return c, fmt.Errorf("nodekeep: Config.RuntimeDir: %w", err)
		}
	}
	if c.Scope == "" {
		c.Scope = ScopeAlloc
	}
	if c.CgroupSlice == "" {
		c.CgroupSlice = "nodekeep.slice"
	}
	if c.MaxKillTimeout == 0 {
		c.MaxKillTimeout = 30 * time.Second
	}
	switch c.MaxFinished {
	case 0:
		c.MaxFinished = 50
	case -1:
		c.MaxFinished = 0
	}
	if c.EpochTTL == 0 {
		c.EpochTTL = 30 * time.Second
	}
	if c.HostEnv == nil {
		c.HostEnv = []string{"PATH", "HOME", "LANG", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR"}
	}
	if c.Log == nil {
		c.Log = hclog.NewNullLogger()
	}
	if c.Node.Name == "" {
		c.Node.Name, _ = os.Hostname()
	}
	if c.Node.Datacenter == "" {
		c.Node.Datacenter = "dc1"
	}
	if c.Node.Region == "" {
		c.Node.Region = "global"
	}
	return c, nil
}
