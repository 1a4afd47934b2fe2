// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// usualPath is searched where the task's environment has no PATH.
	usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// maxVariable is what Linux takes of one variable, name and = included.
	maxVariable = 128<<10 - 1
	// maxPlaces is how many directories of a PATH are searched.
	maxPlaces = 128
)

// process fills in what is run.
func (b *builder) process() {
	p := &b.spec.Process
	p.Args = append([]string{b.c.Command}, b.c.Args...)
	for i, a := range p.Args {
		if strings.ContainsRune(a, 0) {
			b.bad(fmt.Sprintf("config.args[%d]", i-1), a, "holds a NUL byte, which no program can be given")
		}
	}
	p.Env = b.environment()
	if b.c.Command == "" {
		b.bad("config.command", "", "must name the program to run")
	}
	p.Paths = places(b.c.Command, p.Env, b.t.Dirs.Task != "")
	if len(p.Paths) == 0 && b.c.Command != "" {
		b.bad("config.command", b.c.Command, "leads out of the container")
	}
	b.makeExecutable()
	if p.Dir = b.c.WorkDir; p.Dir == "" {
		p.Dir = "/"
	}
	if p.Dir = path.Join("/", p.Dir); strings.ContainsRune(p.Dir, 0) {
		b.bad("config.work_dir", p.Dir, "holds a NUL byte")
	}
	p.Init = b.c.Init
	if p.OOMScoreAdj = b.c.OOMScoreAdj; p.OOMScoreAdj < 0 || p.OOMScoreAdj > 1000 {
		b.bad("config.oom_score_adj", strconv.Itoa(p.OOMScoreAdj), "must be from 0 to 1000")
	}
	b.ulimits()
}

// places are where a command is looked for, in order, in the container: below
// /local, below / (the task's directory) and, without a slash, in the PATH.
func places(command string, env []string, own bool) []string {
	if command == "" || strings.ContainsRune(command, 0) {
		return nil
	}
	if path.IsAbs(command) {
		return []string{path.Clean(command)}
	}
	var out []string
	if own && filepath.IsLocal(command) {
		out = []string{path.Join("/local", command), path.Join("/", command)}
	}
	if !strings.Contains(command, "/") {
		out = append(out, inPath(command, env)...)
	}
	return out
}

func inPath(command string, env []string) (out []string) {
	dirs := filepath.SplitList(variable(env, "PATH", usualPath))
	for _, dir := range dirs[:min(len(dirs), maxPlaces)] {
		if path.IsAbs(dir) {
			out = append(out, path.Join(dir, command))
		}
	}
	return out
}

// variable is the value of the last K=V of that name, or what stands in for it.
func variable(env []string, name, otherwise string) string {
	for _, kv := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return otherwise
}

// environment leaves out what is denied. Faults do not tell values, which may be
// secret.
func (b *builder) environment() []string {
	for field, list := range map[string][]string{"config.denied_envvars": b.c.DeniedEnv, "NodeOptions.DeniedEnv": b.n.DeniedEnv} {
		for i, p := range list {
			if _, err := path.Match(p, ""); err != nil || p == "" {
				b.bad(fmt.Sprintf("%s[%d]", field, i), p, "must be a name or a pattern such as AWS_*")
			}
		}
	}
	denied := func(name string) bool {
		return slices.ContainsFunc(slices.Concat(b.c.DeniedEnv, b.n.DeniedEnv), func(p string) bool { ok, _ := path.Match(p, name); return ok })
	}
	out := make([]string, 0, len(b.t.Env))
	for _, kv := range b.t.Env {
		name, _, ok := strings.Cut(kv, "=")
		switch {
		case !ok || name == "":
			b.bad("environment", shorten(name), "must have a name and a value")
		case denied(name):
		case strings.ContainsRune(kv, 0) || len(kv) > maxVariable:
			b.bad("environment", shorten(name), fmt.Sprintf("holds a NUL byte or is longer than %d bytes", maxVariable))
		default:
			out = append(out, kv)
		}
	}
	return out
}

// makeExecutable gives x to whoever has r, of a program in the task's own /local.
// The task can write there: no link that leads out is followed, and no file is
// changed that has another name, which may be elsewhere.
func (b *builder) makeExecutable() {
	if b.t.Dirs.Local == "" || !filepath.IsLocal(b.c.Command) {
		return
	}
	root, err := os.OpenRoot(b.t.Dirs.Local)
	if err != nil {
		return // the creator says it better
	}
	defer func() { _ = root.Close() }()
	f, err := root.OpenFile(b.c.Command, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1 || st.Mode&0o111 != 0 {
		return
	}
	_ = f.Chmod(os.FileMode(st.Mode&0o777 | st.Mode&0o444>>2))
}

// rlimits are the kernel's limits by name.
var rlimits = map[string]int{
	"as": unix.RLIMIT_AS, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA, "fsize": unix.RLIMIT_FSIZE,
	"locks": unix.RLIMIT_LOCKS, "memlock": unix.RLIMIT_MEMLOCK, "msgqueue": unix.RLIMIT_MSGQUEUE, "nice": unix.RLIMIT_NICE,
	"nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC, "rss": unix.RLIMIT_RSS, "rtprio": unix.RLIMIT_RTPRIO,
	"sigpending": unix.RLIMIT_SIGPENDING, "stack": unix.RLIMIT_STACK,
}

func (b *builder) ulimits() {
	for name, text := range b.c.Ulimits {
		field := "config.ulimit." + name
		key := strings.ToLower(strings.TrimSpace(name))
		if _, ok := rlimits[key]; !ok {
			b.bad(field, text, "there is no such limit, only as core cpu data fsize locks memlock msgqueue nice nofile nproc rss rtprio sigpending stack")
			continue
		}
		softText, hardText, two := strings.Cut(text, ":")
		if !two {
			hardText = softText
		}
		soft, err1 := limit(softText)
		hard, err2 := limit(hardText)
		if err1 != nil || err2 != nil || soft > hard {
			b.bad(field, text, `must be "soft:hard" or one number, "unlimited" is one; soft is not above hard`)
			continue
		}
		if b.spec.Process.Rlimits == nil {
			b.spec.Process.Rlimits = map[string][2]uint64{}
		}
		b.spec.Process.Rlimits[key] = [2]uint64{soft, hard}
	}
}

func limit(s string) (uint64, error) {
	if s = strings.TrimSpace(s); s == "unlimited" || s == "-1" {
		return unix.RLIM_INFINITY, nil
	}
	return strconv.ParseUint(s, 10, 63)
}

var hostname = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?$`)

// etc writes the files that differ from alloc to alloc.
func (b *builder) etc() {
	name, hosts := b.c.Hostname, "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	n := b.t.Network
	if name == "" && n != nil {
		name = n.Hostname
	}
	if name == "" {
		if name = b.t.Owner.AllocID; !hostname.MatchString(name) {
			name = "task"
		}
	}
	if !hostname.MatchString(name) || len(name) > 63 {
		b.bad("config.hostname", name, "must be 1 to 63 letters, digits, . and -")
	}
	if n != nil && n.Address != "" {
		if strings.ContainsAny(n.Address+n.Hostname, " \t\n") {
			b.bad("network.address", n.Address, "must be one address")
		}
		hosts += n.Address + "\t" + name + "\n"
	} else {
		hosts += "127.0.1.1\t" + name + "\n"
	}
	b.spec.Hostname = name
	b.spec.Root.Files = []File{{"/etc/hostname", name + "\n"}, {"/etc/hosts", hosts}, {"/etc/resolv.conf", b.resolvConf()}}
}

func (b *builder) resolvConf() string {
	d := b.t.DNS
	if d == nil || len(d.Servers)+len(d.Searches)+len(d.Options) == 0 {
		return hostResolvConf(b.n.ResolvConf, b.spec.Net != "")
	}
	var s strings.Builder
	for _, l := range [][]string{d.Servers, d.Searches, d.Options} {
		for _, v := range l {
			if v == "" || strings.ContainsAny(v, " \t\n#;") {
				b.bad("network.dns", v, "must be one word")
			}
		}
	}
	for _, v := range d.Servers {
		s.WriteString("nameserver " + v + "\n")
	}
	if len(d.Searches) > 0 {
		s.WriteString("search " + strings.Join(d.Searches, " ") + "\n")
	}
	if len(d.Options) > 0 {
		s.WriteString("options " + strings.Join(d.Options, " ") + "\n")
	}
	return s.String()
}

// hostResolvConf is the host's own. In another network a server on the host's
// loopback is of no use: there the list that such a server asks is taken, if it is
// where systemd keeps it.
func hostResolvConf(path string, otherNet bool) string {
	if path == "" {
		path = "/etc/resolv.conf"
	}
	text, _ := os.ReadFile(path)
	if otherNet && strings.Contains(string(text), "nameserver 127.") {
		if b, err := os.ReadFile("/run/systemd/resolve/resolv.conf"); err == nil {
			text = b
		}
	}
	return string(text)
}
