// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nodekeep/nodekeep/device"
)

const (
	maxAttr  = 4 << 10 // what sysfs shows in a file at most
	maxDepth = 6       // below a device, for its nodes
	maxNodes = 64
)

var pciForm = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// thing is a device that fits a rule.
type thing struct {
	match   *Match
	id      string
	dir     string // in /sys, without links
	name    string // there
	vendor  string // ids, lower case, without 0x; "" if there is none
	device  string
	class   string
	driver  string
	numa    int // -1 if that is not known
	pci     string
	maker   string // as the device calls them
	product string
	nodes   []string
	trouble string // why it cannot be used
}

// scan looks for all that fits the rules, in their order and by name.
func scan(cfg *Config) (out []*thing, err error) {
	if len(cfg.Match) == 0 {
		return nil, nil
	}
	if _, err := os.Stat(cfg.Sys); err != nil {
		return nil, fmt.Errorf("sysfs: devices cannot be seen: %w", err)
	}
	root, err := filepath.EvalSymlinks(cfg.Sys)
	if err != nil {
		return nil, fmt.Errorf("sysfs: %w", err)
	}
	seen := map[string]bool{}
	for i := range cfg.Match {
		m := &cfg.Match[i]
		entries, err := list(root, m.Subsystem)
		if err != nil {
			return nil, err
		}
		for _, path := range entries {
			dir, err := filepath.EvalSymlinks(path)
			if err != nil || seen[dir] || !strings.HasPrefix(dir, root+"/") {
				continue // it was unplugged just now, or is an earlier rule's
			}
			f := read(root, dir, m.Subsystem)
			f.name = filepath.Base(path)
			if !fits(m, f) {
				continue
			}
			seen[dir], f.match = true, m
			f.nodes = nodesBelow(cfg.Dev, dir)
			f.trouble = trouble(f)
			f.id = identity(f, m.Subsystem)
			out = append(out, f)
		}
	}
	unique(out)
	return out, nil
}

// list names the devices of a bus or a class.
func list(root, subsystem string) (paths []string, err error) {
	for _, dir := range []string{filepath.Join(root, "bus", subsystem, "devices"), filepath.Join(root, "class", subsystem)} {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("sysfs: %w", err)
		}
		for _, e := range entries {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
		break
	}
	return paths, nil
}

// read collects what is known of a device. What is not there of a device itself is
// looked for above it: a class's device is a part of one of a bus.
func read(root, dir, subsystem string) *thing {
	f := &thing{dir: dir, numa: -1, class: hex(attr(dir, "class"))}
	bus := subsystem == "pci" || subsystem == "usb"
	for at := dir; at != root && strings.HasPrefix(at, root+"/"); at = filepath.Dir(at) {
		if f.vendor == "" {
			switch {
			case attr(at, "idVendor") != "":
				f.vendor, f.device = hex(attr(at, "idVendor")), hex(attr(at, "idProduct"))
				f.maker, f.product = attr(at, "manufacturer"), attr(at, "product")
				f.class = hex(attr(at, "bDeviceClass"))
			case strings.HasPrefix(attr(at, "vendor"), "0x"):
				f.vendor, f.device, f.class = hex(attr(at, "vendor")), hex(attr(at, "device")), hex(attr(at, "class"))
			}
		}
		if n, err := strconv.Atoi(attr(at, "numa_node")); err == nil && f.numa < 0 {
			f.numa = n
		}
		if f.driver == "" && (at == dir || !bus) {
			f.driver = link(at, "driver")
		}
		if name := filepath.Base(at); f.pci == "" && pciForm.MatchString(name) {
			f.pci = name
		}
	}
	if subsystem == "usb" && (f.driver == "usb" || f.driver == "") {
		f.driver = interfaceDriver(dir)
	}
	return f
}

// interfaceDriver is the driver of the first interface of a USB device that has one:
// that of the device itself is always "usb".
func interfaceDriver(dir string) string {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if sub := filepath.Join(dir, e.Name()); attr(sub, "bInterfaceClass") != "" {
			if d := link(sub, "driver"); d != "" {
				return d
			}
		}
	}
	return ""
}

// attr reads a file of sysfs; "" if it is not there or cannot be read.
func attr(dir, name string) string {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxAttr))
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(strings.TrimSpace(string(b)), "?")
}

func link(dir, name string) string {
	to, err := os.Readlink(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

func hex(s string) string { return strings.ToLower(strings.TrimPrefix(strings.ToLower(s), "0x")) }

func fits(m *Match, f *thing) bool {
	is := func(want, got string) bool { return want == "" || hex(want) == got }
	if m.Subsystem == "usb" && (attr(f.dir, "idVendor") == "" || strings.HasPrefix(f.name, "usb")) {
		return false // an interface of a device, or a root hub
	}
	return is(m.Vendor, f.vendor) && is(m.Device, f.device) && strings.HasPrefix(f.class, hex(m.Class)) &&
		(m.Driver == "" || m.Driver == f.driver) && (m.NUMA == nil || *m.NUMA == f.numa)
}

// nodesBelow are the device nodes of a device and of its parts, but not of other
// devices that are plugged into it.
func nodesBelow(dev, dir string) (nodes []string) {
	top := filepath.Base(link(dir, "subsystem"))
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || len(nodes) >= maxNodes {
			return fs.SkipDir // it was unplugged just now
		}
		if !d.IsDir() {
			return nil
		}
		if path != dir {
			depth := strings.Count(path[len(dir):], "/")
			other := top == "pci" && link(path, "subsystem") == "pci" || attr(path, "idVendor") != ""
			if depth > maxDepth || other {
				return fs.SkipDir
			}
		}
		if attr(path, "dev") == "" {
			return nil
		}
		for line := range strings.Lines(attr(path, "uevent")) {
			name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME=")
			if ok && filepath.IsLocal(name) {
				nodes = append(nodes, filepath.Join(dev, name))
			}
		}
		return nil
	})
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// trouble says why a device cannot be used.
func trouble(f *thing) string {
	for _, n := range slices.Concat(f.nodes, f.match.Nodes) {
		if _, err := os.Stat(n); err != nil {
			return fmt.Sprintf("its device node is missing: %v", err)
		}
	}
	if bus := f.match.Subsystem; f.driver == "" && len(f.nodes) == 0 && (bus == "pci" || bus == "usb") {
		return "no driver is bound to it"
	}
	return ""
}

// identity is what a device is called as long as it lives: USB devices by serial
// number where they have one, all others by where they sit.
func identity(f *thing, subsystem string) string {
	if serial := attr(f.dir, "serial"); subsystem == "usb" && serial != "" {
		return f.vendor + ":" + f.device + ":" + serial
	}
	return f.name
}

// unique tells devices apart that have the same serial number.
func unique(all []*thing) {
	count := map[string]int{}
	for _, f := range all {
		count[f.id]++
	}
	for _, f := range all {
		if count[f.id] > 1 {
			f.id += "@" + f.name
		}
	}
}

func first(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return "unknown"
}

// group is the name of the group a device belongs to.
func (f *thing) group() (vendor, typ, model string) {
	m := f.match
	return first(m.VendorName, f.maker, f.vendor, m.Subsystem), m.Type, first(m.Model, f.product, f.device, m.Subsystem)
}

// env is the variable with the ids of a task's devices.
func (f *thing) env() string {
	if f.match.Env != "" {
		return f.match.Env
	}
	return "NODEKEEP_" + strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToUpper(f.match.Type))
}

// attributes are the facts about a device that jobs can ask for.
func (f *thing) attributes() map[string]device.Attribute {
	out := map[string]device.Attribute{"subsystem": device.Text(f.match.Subsystem)}
	for name, v := range map[string]string{"vendor_id": f.vendor, "device_id": f.device, "class": f.class, "driver": f.driver} {
		if v != "" {
			out[name] = device.Text(v)
		}
	}
	if f.numa >= 0 {
		out["numa_node"] = device.Int(int64(f.numa), "")
	}
	return out
}

// grouped puts devices into groups. An attribute in which devices of a group differ
// is none of the group's.
func grouped(all []*thing) []device.Group {
	groups := []device.Group{}
	for _, f := range all {
		v, t, m := f.group()
		n := slices.IndexFunc(groups, func(g device.Group) bool { return g.Vendor == v && g.Type == t && g.Name == m })
		attrs := f.attributes()
		if n < 0 {
			n = len(groups)
			groups = append(groups, device.Group{Vendor: v, Type: t, Name: m, Attributes: attrs})
		}
		g := &groups[n]
		for name, a := range g.Attributes {
			if b, ok := attrs[name]; !ok || a.String() != b.String() {
				delete(g.Attributes, name)
			}
		}
		g.Instances = append(g.Instances, device.Instance{ID: f.id, Healthy: f.trouble == "", Description: f.trouble, PCIBusID: f.pci})
	}
	return groups
}
