// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package archtest

import (
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// levels is the drawing: a package imports only packages of lower levels, never
// one of its own. A pattern is a directory, or path.Match's notation for several.
// Test files are free.
var levels = [][]string{
	0: {"spec", "state", "driver", "explain", "internal/account", "internal/proctest", "internal/bootclock", "internal/datadir", "internal/guard", "internal/keeper", "internal/creator", "logmon/internal/logdir", "internal/pluginpb"},
	1: {
		"taskenv", "allocdir", "logmon", "logmon/tail", "internal/cgroup", "driver/driverconfig", "jobspec", "device",
		"fingerprint", "internal/pluginproc", "driver/driverplugin/driverpb", "device/deviceplugin/devicepb",
		"driver/exec/internal/container/*",
		"taskrunner/restart", "state/statetest", "driver/drivertest", // for the tests of others
	},
	2: {"supervisor", "driver/exec/internal/container", "internal/usage", "internal/pluginwire", "device/devicetest", "device/sysfs"},
	3: {"driver/internal/supervised", "driver/exec/entry", "drivermanager", "devicemanager"},
	4: {"taskrunner", "driver/rawexec", "driver/exec", "driver/driverplugin", "device/deviceplugin"},
	5: {"allocrunner", "taskrunner/taskrunnertest"},
	6: {"hooks/*", "allocrunner/allocrunnertest", "outbox"},
	7: {"."},
	8: {"api", "api/*", "controlplane/*"},
	9: {"cmd/*", "examples/*", "bench", "internal/archtest", "internal/deps"},
}

func level(dir string) int {
	for n, patterns := range levels {
		if slices.ContainsFunc(patterns, func(p string) bool { ok, _ := path.Match(p, dir); return ok }) {
			return n
		}
	}
	return -1
}

// unlinked says what a package must not pull in, directly or not, and why. A name
// ending in / stands for all below it; "*" is everything outside the standard
// library and this module but for what except names.
var unlinked = []struct {
	dir    string
	never  []string
	except []string
	why    string
}{
	{"spec", []string{"*"}, nil, "a vocabulary costs its reader nothing"},
	{"driver", []string{"*"}, nil, "whoever writes a driver links only that"},
	{"device", []string{"*"}, nil, "the same for whoever finds devices"},
	{"state", []string{"*"}, []string{"go.etcd.io/bbolt/", "golang.org/x/sys/"}, "storage brings the database alone"},
	{"taskenv", []string{"*", "net", "os/exec", "os/user"}, nil, "it is pure"},
	{"allocdir", []string{"os/exec", module + "/internal/account"}, nil, "directories are owned by numbers; nothing is looked up by name"},
	{"internal/cgroup", light, nil, "it runs before the supervisor"},
	{"internal/creator", light, nil, "the same"},
	{"logmon", light, nil, "it runs in the supervisor"},
	{"supervisor", light, nil, "what it links is paid at every start of a task"},
	{"taskrunner", []string{
		module + "/supervisor", module + "/drivermanager", "google.golang.org/grpc/", "google.golang.org/protobuf/",
		"github.com/hashicorp/go-plugin/", "github.com/hashicorp/hcl/", "github.com/zclconf/", "github.com/opencontainers/",
	}, nil, "a host that brings its own drivers links none of that"},
	{"allocrunner", heavy, nil, "the same"},
	{"drivermanager", heavy, nil, "it has Launchers; the wire is theirs"},
	{"devicemanager", heavy, nil, "the same"},
	{".", heavy, nil, "drivers, the wire and other capabilities arrive through its Config"},
}

var (
	light = []string{"net", "encoding/json", "os/exec", "text/template/", "github.com/hashicorp/"}
	heavy = []string{
		"google.golang.org/grpc/", "google.golang.org/protobuf/", "github.com/hashicorp/go-plugin/", "github.com/opencontainers/",
		"github.com/hashicorp/consul/", "github.com/hashicorp/vault/", "github.com/hashicorp/consul-template/",
		"github.com/hashicorp/go-getter/", "github.com/containernetworking/",
	}
)

// confined are modules that the packages below one directory alone may import.
var confined = map[string]string{
	"github.com/opencontainers/": "driver/exec/",
	"github.com/sirupsen/logrus": "driver/exec/", // what the former logs with
}

func checkLevels(tr *tree, report reporter) {
	for _, dir := range tr.packages() {
		own := level(dir)
		if own < 0 {
			report(dir, "package %s has no place in the table of levels", dir)
			continue
		}
		for _, f := range tr.dirs[dir] {
			if f.test {
				continue
			}
			for _, imp := range f.imports {
				for mod, below := range confined {
					if strings.HasPrefix(imp, mod) && !strings.HasPrefix(dir+"/", below) {
						report(dir, "%s imports %s, which only packages below %s may", f.path, imp, below)
					}
				}
				to, ok := local(imp)
				if other := level(to); ok && other >= own && to != dir {
					report(dir, "%s (level %d) imports %s (level %d)", f.path, own, to, other)
				}
			}
		}
	}
}

// TestUnlinked asks the go command what is linked where. The supervisor's weight
// counts where there is one.
func TestUnlinked(t *testing.T) {
	for _, goos := range []string{"linux", "windows"} {
		for _, u := range unlinked {
			if goos != "linux" && slices.Equal(u.never, light) {
				continue
			}
			t.Run(goos+"/"+u.dir, func(t *testing.T) {
				cmd := exec.Command("go", "list", "-deps", "-f", `{{if .Standard}}std{{end}} {{.ImportPath}}`, "./"+u.dir)
				cmd.Dir = "../.."
				cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
				cmd.Stderr = os.Stderr
				out, err := cmd.Output()
				require.NoError(t, err)
				for line := range strings.Lines(string(out)) {
					std, dep, _ := strings.Cut(strings.TrimRight(line, "\n"), " ")
					if forbidden(dep, std != "", u.never) && !matches(dep, u.except) {
						t.Errorf("%s links %s: %s (go mod why, or go list -deps, shows the way)", u.dir, dep, u.why)
					}
				}
			})
		}
	}
}

func forbidden(dep string, std bool, never []string) bool {
	_, own := local(dep)
	return matches(dep, never) || slices.Contains(never, "*") && !std && !own
}

func matches(dep string, names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool {
		below, isTree := strings.CutSuffix(n, "/")
		return dep == below || isTree && strings.HasPrefix(dep, n)
	})
}
