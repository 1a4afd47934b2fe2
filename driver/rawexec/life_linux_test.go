// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package rawexec

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/internal/supervised"
)

// The driver is off by default: it says how to switch it on, and what runs
// already is not forgotten.
func TestDisabled(t *testing.T) {
	r := newRig(t, Config{Enabled: true})
	c := r.sh("a/web/0", "sleep 3600")
	h := r.mustStart(c)
	r.cfg = Config{}
	r.renew()
	_, err := r.d.Start(r.ctx(), r.sh("a/web/1", "true"))
	require.ErrorContains(t, err, "set rawexec.Config.Enabled")
	require.False(t, driver.IsRecoverable(err))
	r.cfg.HowToEnable = "start it with --raw"
	r.renew()
	_, err = r.d.Start(r.ctx(), r.sh("a/web/1", "true"))
	require.ErrorContains(t, err, "run without isolation: start it with --raw")
	require.NotContains(t, err.Error(), "Config")
	fps, err := r.d.Fingerprint(r.ctx())
	require.NoError(t, err)
	require.Equal(t, driver.Undetected, (<-fps).Health)
	require.NoError(t, r.d.Recover(r.ctx(), h))
	require.NoError(t, r.d.Stop(r.ctx(), c.ID, "", time.Minute))
	require.Equal(t, driver.ExitResult{Code: 143, Signal: 15}, r.wait(c.ID)) // SIGTERM is the default
	r.destroy(c, h)
}

// FF-041: starts that fail, in every way there is, leave nothing and name what
// is wrong; then the same ID starts.
func TestFailedStarts(t *testing.T) {
	r := newRig(t, Config{Enabled: true, DeniedUsers: []string{"daemon"}})
	plain := filepath.Join(r.base, "plain")
	require.NoError(t, os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o644))
	script := filepath.Join(r.dirs.Local, "script")
	require.NoError(t, os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o755))
	garbage := filepath.Join(r.dirs.Local, "garbage")
	require.NoError(t, os.WriteFile(garbage, []byte("neither"), 0o755))
	ok := map[string]any{"command": "true"}
	for text, change := range map[string]func(c *driver.TaskConfig){
		`config.command "no-such" : no such program, looked for as`:    func(c *driver.TaskConfig) { *c = r.task(c.ID, map[string]any{"command": "no-such"}) },
		`no such program, looked for as /no/such: file does not exist`: func(c *driver.TaskConfig) { *c = r.task(c.ID, map[string]any{"command": "/no/such"}) },
		"out of the task's directory":                                  func(c *driver.TaskConfig) { *c = r.task(c.ID, map[string]any{"command": "../x"}) },
		plain + " is not executable":                                   func(c *driver.TaskConfig) { *c = r.task(c.ID, map[string]any{"command": plain}) },
		"its interpreter or loader":                                    func(c *driver.TaskConfig) { *c = r.task(c.ID, map[string]any{"command": "script"}) },
		"exec format error":                                            func(c *driver.TaskConfig) { *c = r.task(c.ID, map[string]any{"command": "garbage"}) },
		"config.work_dir: stat":                                        func(c *driver.TaskConfig) { *c = r.task(c.ID, map[string]any{"command": "true", "work_dir": "no"}) },
		`user "no-such-user"`:                                          func(c *driver.TaskConfig) { c.User = "no-such-user" },
		"may not be used on this node":                                 func(c *driver.TaskConfig) { c.User = "daemon" },
		`group no-such-group`:                                          func(c *driver.TaskConfig) { c.User = "nobody:no-such-group" },
		"config.command is empty":                                      func(c *driver.TaskConfig) { *c = r.task(c.ID, map[string]any{"command": ""}) },
		`unknown field "comand"`:                                       func(c *driver.TaskConfig) { *c = r.task(c.ID, map[string]any{"comand": "true"}) },
		"oom_score_adj is 1001": func(c *driver.TaskConfig) {
			*c = r.task(c.ID, map[string]any{"command": "true", "oom_score_adj": 1001})
		},
		"args[1] \"a\\x00b\" holds a NUL": func(c *driver.TaskConfig) {
			*c = r.task(c.ID, map[string]any{"command": "true", "args": []string{"", "a\x00b"}})
		},
		"entry 2 has no name":             func(c *driver.TaskConfig) { c.Env = append(c.Env, "=x") },
		`environment: "BIG" takes 131072`: func(c *driver.TaskConfig) { c.Env = append(c.Env, "BIG="+strings.Repeat("x", 128<<10-4)) },
		`environment: "ZERO" holds a NUL`: func(c *driver.TaskConfig) { c.Env = append(c.Env, "ZERO=\x00") },
		"mounts and devices":              func(c *driver.TaskConfig) { c.Mounts = []driver.Mount{{Source: "/a", Target: "/b"}} },
		"network mode \"group\"":          func(c *driver.TaskConfig) { c.Network = &driver.Network{Mode: "group", Path: "/run/netns/x"} },
		"Scope is empty":                  func(c *driver.TaskConfig) { c.Scope = "" },
		"argument list too long": func(c *driver.TaskConfig) {
			for i := range 20 { // the supervisor takes 4 MiB, Linux a quarter of the stack
				c.Env = append(c.Env, fmt.Sprintf("V%d=%s", i, strings.Repeat("x", 120<<10)))
			}
		},
		r.base + "/no/fifo": func(c *driver.TaskConfig) { c.Stdio.Stdout = r.base + "/no/fifo" },
	} {
		text = strings.ReplaceAll(text, " :", ":")
		t.Run(text, func(t *testing.T) {
			if strings.Contains(text, "daemon") || strings.Contains(text, "user") {
				root(t)
			}
			c := r.task("fails/web/0", ok)
			change(&c)
			for range 10 {
				_, err := r.start(c)
				require.ErrorContains(t, err, text)
				require.False(t, driver.IsRecoverable(err), "%v", err)
				r.empty(c)
			}
			_, err := r.d.Wait(r.ctx(), c.ID)
			require.ErrorIs(t, err, driver.ErrTaskNotFound)
			good := r.sh(c.ID, "exit 3")
			h := r.mustStart(good)
			require.Equal(t, driver.ExitResult{Code: 3}, r.wait(c.ID))
			r.destroy(good, h)
		})
	}
	_, err := r.start(r.task("x/web/0", map[string]any{"command": "no-such"}))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// Trying again may help where the machine, not the job, is at fault.
func TestRecoverableStart(t *testing.T) {
	r := newRig(t, Config{Enabled: true})
	busy := filepath.Join(r.dirs.Local, "busy")
	b, err := os.ReadFile("/bin/true")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(busy, b, 0o755))
	w, err := os.OpenFile(busy, os.O_WRONLY, 0) // somebody is still writing the program
	require.NoError(t, err)
	defer w.Close()
	c := r.task("a/web/0", map[string]any{"command": "busy"})
	_, err = r.start(c)
	require.ErrorIs(t, err, syscall.ETXTBSY)
	require.True(t, driver.IsRecoverable(err))
	require.NoError(t, w.Close())
	h := r.mustStart(c)
	require.Equal(t, driver.ExitResult{}, r.wait(c.ID))
	r.destroy(c, h)

	require.NoError(t, r.pool.Close()) // the agent is about to end
	_, err = r.start(r.sh("a/web/1", "true"))
	require.ErrorIs(t, err, driver.ErrUnavailable)
	require.True(t, driver.IsRecoverable(err))
	r.renew()
}

// The first place wins, with what is the task's own made executable.
func TestProgram(t *testing.T) {
	r := newRig(t, Config{Enabled: true})
	bin := filepath.Join(r.base, "bin")
	require.NoError(t, os.MkdirAll(bin, 0o755))
	say := func(path, word string, mode fs.FileMode) {
		require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\necho "+word+" \"$#\" \"$1\"\n"), mode))
	}
	run := func(command string) string {
		c := r.task("p/web/0", map[string]any{"command": command, "args": []string{"two words", "$HOME *"}})
		c.Env = []string{r.mark, "PATH=relative::" + bin + ":/usr/bin"}
		out := r.logs(&c)
		h := r.mustStart(c)
		require.Equal(t, driver.ExitResult{}, r.wait(c.ID))
		text := out()
		r.destroy(c, h)
		require.NoError(t, r.pool.Scope(scope).EndLogs(r.ctx(), c.Name))
		require.NoError(t, os.Remove(filepath.Join(r.dirs.Logs, "web.stdout.0")))
		return text
	}
	say(filepath.Join(bin, "prog"), "path", 0o755)
	require.Equal(t, "path 2 two words\n", run("prog")) // never split again
	say(filepath.Join(r.dirs.Task, "prog"), "task", 0o640)
	require.Equal(t, "task 2 two words\n", run("prog"))
	say(filepath.Join(r.dirs.Local, "prog"), "local", 0o600)
	require.Equal(t, "local 2 two words\n", run("prog"))
	st, err := os.Stat(filepath.Join(r.dirs.Local, "prog"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), st.Mode()) // who may not read may not run
	require.Equal(t, "task 2 two words\n", run("./prog")[:0]+run(filepath.Join(r.dirs.Task, "prog")))
	require.NoError(t, os.Mkdir(filepath.Join(r.dirs.Local, "env"), 0o755)) // a directory is no program
	_, err = program(r.dirs.Task, "env", nil)
	require.NoError(t, err)
	sub := filepath.Join(r.dirs.Task, "sub")
	require.NoError(t, os.Mkdir(sub, 0o755))
	say(filepath.Join(sub, "prog"), "sub", 0o644)
	require.Equal(t, "sub 2 two words\n", run("sub/prog"))
	_, err = program("", "sh", nil) // no directory, no PATH
	require.NoError(t, err)
}

// A task can put links into its directory: nothing outside is made executable.
func TestProgramLinks(t *testing.T) {
	r := newRig(t, Config{Enabled: true})
	victim := filepath.Join(r.base, "victim")
	require.NoError(t, os.WriteFile(victim, []byte("#!/bin/sh\n"), 0o600))
	require.NoError(t, os.Symlink(victim, filepath.Join(r.dirs.Local, "soft")))
	require.NoError(t, os.Link(victim, filepath.Join(r.dirs.Local, "hard")))
	require.NoError(t, os.Symlink(r.base, filepath.Join(r.dirs.Local, "out")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(r.dirs.Local, "fifo"), 0o600))
	for _, command := range []string{"soft", "hard", "out/victim", filepath.Join(r.dirs.Local, "soft")} {
		_, err := program(r.dirs.Task, command, nil)
		require.ErrorContains(t, err, "cannot be made so", command)
	}
	_, err := program(r.dirs.Task, "fifo", nil)
	require.ErrorContains(t, err, "not a regular file")
	st, err := os.Stat(victim)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), st.Mode())

	// A link to a program of the host is fine, as in a Python environment.
	require.NoError(t, os.Symlink("/bin/sh", filepath.Join(r.dirs.Local, "python")))
	path, err := program(r.dirs.Task, "python", nil)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(r.dirs.Local, "python"), path)
}

// FF-091, FF-094: the environment is what the configuration says, byte for byte
// and nothing else; the same goes for descriptors, session and directory.
func TestExact(t *testing.T) {
	t.Setenv("NK_AGENT_ONLY", "secret")
	r := newRig(t, Config{Enabled: true, DeniedEnv: []string{"AWS_*"}})
	env := []string{r.mark, "A=a=b=c", `Q="quoted"`, "D=$HOME", "U=${not", "P=100%", "M=one\ntwo\n", "T=trailing ",
		"E=", "my-key=1", "discovery.zen.hosts=x", "1x=y", "Ü=ünicode\xff", "BIG=" + strings.Repeat("x", 128<<10-5)}
	slices.Sort(env)
	for i, noCgroups := range []bool{false, true} {
		c := r.task(fmt.Sprintf("e/web/%d", i), map[string]any{"command": "/bin/cat", "args": []string{"/proc/self/environ"},
			"no_cgroups": noCgroups, "denied_envvars": []string{"SECRET"}})
		c.Env = append(slices.Clone(env), "AWS_KEY=k", "SECRET=s")
		out := r.logs(&c)
		h := r.mustStart(c)
		require.Equal(t, driver.ExitResult{}, r.wait(c.ID))
		got := strings.Split(strings.TrimSuffix(out(), "\x00"), "\x00")
		slices.Sort(got)
		require.True(t, slices.Equal(env, got), "%.3000q", got)
		r.destroy(c, h)
		require.NoError(t, os.Truncate(filepath.Join(r.dirs.Logs, "web.stdout.0"), 0))

		c = r.sh(fmt.Sprintf("x/web/%d", i), `ls /proc/self/fd; pwd; ps -o sid= -p $$; echo $0`)
		h = r.mustStart(withLogs(c, r))
		require.Equal(t, driver.ExitResult{}, r.wait(c.ID))
		// 3 is ls reading the directory.
		require.Equal(t, []string{"0", "1", "2", "3", r.dirs.Task, strconv.Itoa(h.PID), "/bin/sh"}, strings.Fields(out()))
		r.destroy(c, h)
		require.NoError(t, os.Truncate(filepath.Join(r.dirs.Logs, "web.stdout.0"), 0))
	}
}

func withLogs(c driver.TaskConfig, r *rig) driver.TaskConfig {
	r.logs(&c)
	return c
}

// A user is resolved here, to all its groups or to the one that is asked for.
func TestUsers(t *testing.T) {
	root(t)
	nobody, err := user.Lookup("nobody")
	require.NoError(t, err)
	r := newRig(t, Config{Enabled: true})
	for i, tt := range []struct{ user, want string }{
		{"nobody", nobody.Uid + " " + nobody.Gid + " " + nobody.Gid},
		{nobody.Uid, nobody.Uid + " " + nobody.Gid + " " + nobody.Gid},
		{"nobody:daemon", nobody.Uid + " 1 1"},
		{"12345:54321", "12345 54321 54321"},
		{"", "0 0"},
		{"root", "0 0 0"},
	} {
		c := r.sh(fmt.Sprintf("u/web/%d", i), `echo $(id -u) $(id -g) $(id -G) >out; test -w /proc/self/oom_score_adj`)
		c.User = tt.user
		h := r.mustStart(c)
		require.Equal(t, driver.ExitResult{}, r.wait(c.ID))
		b, err := os.ReadFile(filepath.Join(r.dirs.Task, "out"))
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(b), tt.want), "%q is %q, not %q", tt.user, b, tt.want)
		require.NoError(t, os.Remove(filepath.Join(r.dirs.Task, "out")))
		r.destroy(c, h)
	}
}

func TestDeniedUsers(t *testing.T) {
	root(t)
	for _, tt := range []struct {
		denied []string
		user   string
		ok     bool
	}{
		{[]string{"root"}, "", false}, // the agent's own
		{[]string{"0"}, "root", false},
		{[]string{"0-999"}, "daemon", false},
		{[]string{"0-999"}, "nobody", true},
		{[]string{"nobody"}, "nobody", false},
		{[]string{"nobody"}, "65534:0", false},
		{[]string{"no-such-user"}, "", true},
		{[]string{"1-999"}, "4294967296:0", false}, // no way around 32 bits
	} {
		r := newRig(t, Config{Enabled: true, DeniedUsers: tt.denied})
		c := r.sh("d/web/0", "exit 0")
		c.User = tt.user
		h, err := r.start(c)
		require.Equal(t, tt.ok, err == nil, "%v: %v", tt, err)
		if err == nil {
			r.wait(c.ID)
			r.destroy(c, h)
		}
	}
	for _, bad := range []string{"", "9-1", "1-x", "a b", "a:b"} {
		_, err := New(Config{DeniedUsers: []string{bad}, DeniedEnv: []string{"["}})(nil)
		require.ErrorContains(t, err, "Config.DeniedUsers[0]")
		require.ErrorContains(t, err, "Config.DeniedEnv[0]")
	}
}

// FF-050: a task has the score it asks for, or none, whatever the agent has.
func TestOOMScore(t *testing.T) {
	root(t)
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	require.NoError(t, err)
	agents := "-500"
	if os.WriteFile("/proc/self/oom_score_adj", []byte(agents), 0) != nil { // this root may not
		agents = "500"
		require.NoError(t, os.WriteFile("/proc/self/oom_score_adj", []byte(agents), 0))
	}
	defer os.WriteFile("/proc/self/oom_score_adj", own, 0)
	r := newRig(t, Config{Enabled: true})
	for i, want := range []int{0, 300} {
		c := r.task(fmt.Sprintf("o/web/%d", i), map[string]any{"command": "sleep", "args": []string{"3600"}, "oom_score_adj": want})
		h := r.mustStart(c)
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", h.PID))
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(want), strings.TrimSpace(string(b)))
		r.destroy(c, h)
	}
	b, err := os.ReadFile("/proc/self/oom_score_adj")
	require.NoError(t, err)
	require.Equal(t, agents, strings.TrimSpace(string(b)))
}

// Signals go by name, in any spelling, to the main process alone.
func TestSignals(t *testing.T) {
	r := newRig(t, Config{Enabled: true})
	c := r.sh("s/web/0", `trap 'echo usr1' USR1; trap 'echo hup; exit 9' HUP; sh -c 'trap "echo child" USR1; echo up; while :; do sleep 0.01; done' & while :; do sleep 0.01; done`)
	out := r.logs(&c)
	h := r.mustStart(c)
	eventually(t, "the child", func() bool { return strings.Contains(out(), "up\n") })
	sig := r.d.(driver.Signaler)
	require.NoError(t, sig.Signal(r.ctx(), c.ID, "usr1"))
	eventually(t, "the trap", func() bool { return strings.Contains(out(), "usr1\n") })
	err := sig.Signal(r.ctx(), c.ID, "SIGFOO")
	require.ErrorIs(t, err, driver.ErrUnknownSignal)
	require.ErrorContains(t, err, "SIGABRT, SIGALRM")
	require.ErrorIs(t, r.d.Stop(r.ctx(), c.ID, "FOO", time.Minute), driver.ErrUnknownSignal)
	require.NoError(t, r.d.Stop(r.ctx(), c.ID, "SIGHUP", time.Minute))
	require.Equal(t, driver.ExitResult{Code: 9}, r.wait(c.ID))
	require.NoError(t, sig.Signal(r.ctx(), c.ID, "TERM")) // it has ended: no error
	require.Equal(t, "up\nusr1\nhup\n", out())
	st, err := r.d.(driver.Inspector).Inspect(r.ctx(), c.ID)
	require.NoError(t, err)
	require.Equal(t, "exited", st.State)
	require.Equal(t, &driver.ExitResult{Code: 9}, st.Exit)
	require.WithinDuration(t, time.Now(), st.StartedAt, time.Minute)
	r.destroy(c, h)
}

// What a handle holds is fixed: an agent of any version reads it.
func TestHandle(t *testing.T) {
	r := newRig(t, Config{Enabled: true})
	c := r.sh("h/web/0", "sleep 3600")
	h := r.mustStart(c)
	require.Equal(t, Name, h.Driver)
	require.Equal(t, 1, h.Version)
	var state map[string]any
	require.NoError(t, json.Unmarshal(h.State, &state))
	require.EqualValues(t, h.PID, state["pid"])
	require.Equal(t, scope, state["scope"])
	require.NotZero(t, state["start"])
	require.NotEmpty(t, state["boot_id"])
	if c.Cgroup != "" {
		require.Equal(t, c.Cgroup, state["cgroup"])
	}
	for _, bad := range []driver.Handle{
		{Driver: "exec", TaskID: c.ID, Version: 1, State: h.State},
		{Driver: Name, TaskID: c.ID, Version: 2, State: h.State},
		{Driver: Name, TaskID: c.ID, Version: 1, State: json.RawMessage(`{"pid":1}`)},
		{Driver: Name, TaskID: c.ID, Version: 1, State: json.RawMessage(`{`)},
		{Driver: Name, TaskID: c.ID, Version: 1},
	} {
		err := r.d.Recover(r.ctx(), &bad)
		require.Error(t, err)
		require.NotErrorIs(t, err, driver.ErrTaskNotFound) // it proves nothing
	}
	require.Error(t, r.d.Recover(r.ctx(), nil))
	r.destroy(c, h)
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"command":"x","args":["a"],"oom_score_adj":3}`), []byte(`{"pid":1,"start":2,"boot_id":"b","scope":"s"}`))
	f.Fuzz(func(t *testing.T, config, state []byte) {
		if c, err := decode(config); err == nil && (c.Command == "" || c.OOMScore < 0) {
			t.Errorf("%+v", c)
		}
		if r, err := supervised.New(Name, "rawexec", false, nil).Parse(&driver.Handle{Driver: Name, State: state}); err == nil && (r.PID <= 0 || r.Scope == "") {
			t.Errorf("%+v", r)
		}
	})
}
