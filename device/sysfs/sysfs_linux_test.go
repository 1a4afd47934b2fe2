// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package sysfs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/device/devicetest"
	"github.com/nodekeep/nodekeep/device/sysfs"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverconfig"
)

// tree is a /sys and a /dev in a directory.
type tree struct {
	t        *testing.T
	sys, dev string
}

func newTree(t *testing.T) *tree {
	base := t.TempDir()
	tr := &tree{t, filepath.Join(base, "sys"), filepath.Join(base, "dev")}
	tr.file("bus/pci/drivers/amdgpu/module", "")
	tr.file("bus/usb/drivers/ftdi_sio/module", "")
	tr.file("bus/usb/drivers/usb/module", "")
	return tr
}

func (tr *tree) file(path, text string) {
	tr.t.Helper()
	full := filepath.Join(tr.sys, path)
	require.NoError(tr.t, os.MkdirAll(filepath.Dir(full), 0o755))
	require.NoError(tr.t, os.WriteFile(full, []byte(text), 0o600))
}

func (tr *tree) link(path, to string) {
	tr.t.Helper()
	full := filepath.Join(tr.sys, path)
	require.NoError(tr.t, os.MkdirAll(filepath.Dir(full), 0o755))
	require.NoError(tr.t, os.Symlink(filepath.Join(tr.sys, to), full))
}

// node is a device node, which the device at path has.
func (tr *tree) node(path, name string) {
	tr.t.Helper()
	tr.file(path+"/dev", "4:1\n")
	tr.file(path+"/uevent", "MAJOR=4\nMINOR=1\nDEVNAME="+name+"\n")
	full := filepath.Join(tr.dev, name)
	require.NoError(tr.t, os.MkdirAll(filepath.Dir(full), 0o755))
	require.NoError(tr.t, os.WriteFile(full, nil, 0o600))
}

// gpu is a card in a slot behind a bridge.
func (tr *tree) gpu(addr, node, numa string) string {
	dir := "devices/pci0000:00/0000:00:01.0/" + addr
	tr.file(dir+"/class", "0x030200\n")
	tr.file(dir+"/vendor", "0x1002\n")
	tr.file(dir+"/device", "0x66A1\n")
	tr.file(dir+"/numa_node", numa+"\n")
	tr.file(dir+"/hwmon/hwmon0/temp1_input", "45500\n")
	tr.file(dir+"/hwmon/hwmon0/temp2_input", "61000\n")
	tr.file(dir+"/hwmon/hwmon0/temp2_label", "junction\n")
	tr.file(dir+"/hwmon/hwmon0/power1_average", "120000000\n")
	tr.file(dir+"/power/runtime_status", "active\n")
	tr.link(dir+"/driver", "bus/pci/drivers/amdgpu")
	tr.link(dir+"/subsystem", "bus/pci")
	tr.node(dir+"/drm/"+node, "dri/"+node)
	tr.link("bus/pci/devices/"+addr, dir)
	return dir
}

// stick is a USB device behind a hub, with a serial adapter in it.
func (tr *tree) stick(name, serial, tty string) string {
	dir := "devices/pci0000:00/0000:00:14.0/usb1/" + name
	tr.file(dir+"/idVendor", "0403\n")
	tr.file(dir+"/idProduct", "6001\n")
	tr.file(dir+"/bDeviceClass", "00\n")
	tr.file(dir+"/manufacturer", "FTDI\n")
	tr.file(dir+"/product", "FT232R USB UART\n")
	if serial != "" {
		tr.file(dir+"/serial", serial+"\n")
	}
	tr.node(dir, "bus/usb/001/"+name)
	tr.link(dir+"/driver", "bus/usb/drivers/usb")
	tr.link(dir+"/subsystem", "bus/usb")
	sub := dir + "/" + name + ":1.0"
	tr.file(sub+"/bInterfaceClass", "ff\n")
	tr.link(sub+"/driver", "bus/usb/drivers/ftdi_sio")
	tr.node(sub+"/tty/"+tty, tty)
	tr.link("class/tty/"+tty, sub+"/tty/"+tty)
	tr.link("bus/usb/devices/"+name, dir)
	tr.link("bus/usb/devices/"+name+":1.0", sub)
	return dir
}

func (tr *tree) plugin(rules ...sysfs.Match) *sysfs.Plugin {
	return sysfs.New(sysfs.Config{Sys: tr.sys, Dev: tr.dev, Match: rules})
}

// look returns the first fingerprint.
func look(t *testing.T, p device.Plugin) []device.Group {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c, err := p.Fingerprint(ctx)
	require.NoError(t, err)
	fp := <-c
	cancel()
	for range c {
	}
	require.NoError(t, fp.Err)
	require.NoError(t, device.Validate(fp.Groups))
	return fp.Groups
}

func machine(t *testing.T) *tree {
	tr := newTree(t)
	bridge := "devices/pci0000:00/0000:00:01.0"
	tr.file(bridge+"/class", "0x060400\n")
	tr.file(bridge+"/vendor", "0x8086\n")
	tr.file(bridge+"/device", "0x1901\n")
	tr.link(bridge+"/subsystem", "bus/pci")
	tr.link("bus/pci/devices/0000:00:01.0", bridge)
	tr.gpu("0000:01:00.0", "card0", "0")
	tr.gpu("0000:02:00.0", "card1", "1")
	tr.stick("1-1", "A9007", "ttyUSB0")
	tr.stick("1-2", "", "ttyUSB1")
	return tr
}

func TestPCI(t *testing.T) {
	tr := machine(t)
	groups := look(t, tr.plugin(sysfs.Match{Type: "gpu", Subsystem: "pci", Class: "0302"}))
	require.Equal(t, []device.Group{{Vendor: "1002", Type: "gpu", Name: "66a1",
		Attributes: map[string]device.Attribute{"subsystem": device.Text("pci"), "vendor_id": device.Text("1002"), "device_id": device.Text("66a1"),
			"class": device.Text("030200"), "driver": device.Text("amdgpu")}, // the NUMA node is not the group's: they differ
		Instances: []device.Instance{{ID: "0000:01:00.0", Healthy: true, PCIBusID: "0000:01:00.0"}, {ID: "0000:02:00.0", Healthy: true, PCIBusID: "0000:02:00.0"}}}}, groups)

	// A rule for each NUMA node makes a group of each, with the attribute.
	zero, one := 0, 1
	groups = look(t, tr.plugin(
		sysfs.Match{Type: "gpu", Subsystem: "pci", Vendor: "0x1002", NUMA: &zero, VendorName: "amd", Model: "near"},
		sysfs.Match{Type: "gpu", Subsystem: "pci", Vendor: "1002", NUMA: &one, VendorName: "amd", Model: "far"}))
	require.Equal(t, "amd/gpu/near", groups[0].ID())
	require.Equal(t, device.Int(0, ""), groups[0].Attributes["numa_node"])
	require.Equal(t, "amd/gpu/far", groups[1].ID())

	// The first rule has it.
	groups = look(t, tr.plugin(sysfs.Match{Type: "a", Subsystem: "pci", Device: "66A1"}, sysfs.Match{Type: "b", Subsystem: "pci"}))
	require.Len(t, groups, 2)
	require.Equal(t, "a", groups[0].Type)
	require.Len(t, groups[0].Instances, 2)
	require.Equal(t, []device.Instance{{ID: "0000:00:01.0", Description: "no driver is bound to it", PCIBusID: "0000:00:01.0"}}, groups[1].Instances)

	for _, m := range []sysfs.Match{{Type: "x", Subsystem: "pci", Driver: "vfio-pci"}, {Type: "x", Subsystem: "pci", Class: "12"}, {Type: "x", Subsystem: "none"}} {
		require.Empty(t, look(t, tr.plugin(m)))
	}
}

func TestUSB(t *testing.T) {
	tr := machine(t)
	p := tr.plugin(sysfs.Match{Type: "serial", Subsystem: "usb", Vendor: "0403", Driver: "ftdi_sio"})
	groups := look(t, p)
	require.Len(t, groups, 1)
	require.Equal(t, "FTDI/serial/FT232R USB UART", groups[0].ID())
	require.Equal(t, []device.Instance{{ID: "0403:6001:A9007", Healthy: true, PCIBusID: "0000:00:14.0"}, {ID: "1-2", Healthy: true, PCIBusID: "0000:00:14.0"}}, groups[0].Instances)
	r, err := p.Reserve(t.Context(), []string{"0403:6001:A9007"})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"NODEKEEP_SERIAL": "0403:6001:A9007",
		"NODEKEEP_SERIAL_NODES": tr.dev + "/bus/usb/001/1-1:" + tr.dev + "/ttyUSB0"}, r.Env)
	require.Equal(t, driver.Device{HostPath: tr.dev + "/ttyUSB0", TaskPath: tr.dev + "/ttyUSB0", Permissions: "rw"}, r.Devices[1])

	// The same serial number on two.
	tr.stick("1-3", "A9007", "ttyUSB2")
	require.Equal(t, "0403:6001:A9007@1-1", look(t, p)[0].Instances[0].ID)
}

func TestClass(t *testing.T) {
	tr := machine(t)
	p := tr.plugin(sysfs.Match{Type: "tty", Subsystem: "tty", Vendor: "0403", Model: "adapter"})
	groups := look(t, p)
	require.Equal(t, "FTDI/tty/adapter", groups[0].ID())
	require.Equal(t, device.Text("ftdi_sio"), groups[0].Attributes["driver"])
	require.Equal(t, "ttyUSB0", groups[0].Instances[0].ID)
	r, err := p.Reserve(t.Context(), []string{"ttyUSB0", "ttyUSB1"})
	require.NoError(t, err)
	require.Len(t, r.Devices, 2)
	require.Equal(t, "ttyUSB0,ttyUSB1", r.Env["NODEKEEP_TTY"])
}

// A device whose nodes are not there is unhealthy, and reserved by nobody.
func TestTrouble(t *testing.T) {
	tr := machine(t)
	p := tr.plugin(sysfs.Match{Type: "gpu", Subsystem: "pci", Class: "0302", Nodes: []string{tr.dev + "/kfd"}, Permissions: "rwm", Env: "GPUS"})
	require.False(t, look(t, p)[0].Instances[0].Healthy)
	_, err := p.Reserve(t.Context(), []string{"0000:01:00.0"})
	require.ErrorContains(t, err, "its device node is missing")
	require.True(t, driver.IsRecoverable(err))
	require.NoError(t, os.WriteFile(tr.dev+"/kfd", nil, 0o600))
	require.True(t, look(t, p)[0].Instances[0].Healthy)
	r, err := p.Reserve(t.Context(), []string{"0000:01:00.0", "0000:02:00.0"})
	require.NoError(t, err)
	require.Len(t, r.Devices, 3, "what they share is given once")
	require.Equal(t, "rwm", r.Devices[0].Permissions)
	require.Equal(t, "0000:01:00.0,0000:02:00.0", r.Env["GPUS"])

	gone := sysfs.New(sysfs.Config{Sys: tr.sys + "/none", Match: []sysfs.Match{{Type: "x", Subsystem: "pci"}}})
	require.Empty(t, look(t, sysfs.New(sysfs.Config{Sys: tr.sys + "/none"})), "nothing is looked for")
	c, err := gone.Fingerprint(t.Context())
	require.NoError(t, err)
	require.ErrorContains(t, (<-c).Err, "devices cannot be seen")
	// Links out of the tree are not followed.
	require.NoError(t, os.Symlink("/etc", filepath.Join(tr.sys, "bus/pci/devices/evil")))
	require.Len(t, look(t, tr.plugin(sysfs.Match{Type: "x", Subsystem: "pci"})), 2)
}

// What is plugged in and out is seen, and nothing is told twice.
func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := machine(t)
		ctx, cancel := context.WithCancel(t.Context())
		c, err := tr.plugin(sysfs.Match{Type: "serial", Subsystem: "usb"}).Fingerprint(ctx)
		require.NoError(t, err)
		require.Len(t, (<-c).Groups[0].Instances, 2)
		select {
		case fp := <-c:
			t.Fatalf("told again: %v", fp)
		case <-time.After(time.Minute):
		}
		tr.stick("1-3", "X", "ttyUSB2")
		began := time.Now()
		require.Len(t, (<-c).Groups[0].Instances, 3)
		require.LessOrEqual(t, time.Since(began), 11*time.Second)
		cancel()
		for range c {
		}
	})
}

// A device that really comes and goes is told of by the kernel, long before the
// next look.
func TestPlugged(t *testing.T) {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no device can be made here: ", err)
	}
	defer func() { _ = f.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	c, err := sysfs.New(sysfs.Config{Period: time.Hour, Match: []sysfs.Match{{Type: "nic", Subsystem: "net", VendorName: "linux", Model: "any"}}}).Fingerprint(ctx)
	require.NoError(t, err)
	id := fmt.Sprintf("nk%d", os.Getpid())
	shows := func(want bool) {
		t.Helper()
		for fp := range c {
			require.NoError(t, fp.Err)
			if want == slices.ContainsFunc(fp.Groups, func(g device.Group) bool {
				return slices.ContainsFunc(g.Instances, func(in device.Instance) bool { return in.ID == id })
			}) {
				return
			}
		}
		t.Fatal("it was not told")
	}
	shows(false)
	var req struct {
		name  [16]byte
		flags uint16
		_     [22]byte
	}
	copy(req.name[:], id)
	req.flags = syscall.IFF_TUN | syscall.IFF_NO_PI
	_, _, no := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TUNSETIFF, uintptr(unsafe.Pointer(&req)))
	if no != 0 {
		t.Skip("no device can be made here: ", no)
	}
	if _, err := os.Stat("/sys/class/net/" + id); err != nil {
		t.Skip("/sys is of another network: ", err)
	}
	shows(true)
	require.NoError(t, f.Close())
	shows(false)
	cancel()
	for range c {
	}
}

func TestStats(t *testing.T) {
	tr := machine(t)
	ctx, cancel := context.WithCancel(t.Context())
	c, err := tr.plugin(sysfs.Match{Type: "gpu", Subsystem: "pci", Class: "0302"}).Stats(ctx, time.Hour)
	require.NoError(t, err)
	s := <-c
	in := s.Groups[0].Instances["0000:01:00.0"]
	require.Equal(t, 61.0, *in.Summary.Float)
	require.Equal(t, "Temperature (junction)", in.Summary.Description)
	require.Equal(t, 120.0, *in.Stats.Values["power1"].Float)
	require.Equal(t, "active", *in.Stats.Values["power_state"].Text)
	cancel()
	for range c {
	}
}

func TestConfigure(t *testing.T) {
	configure := func(raw string) error {
		p := sysfs.New(sysfs.Config{})
		config, err := driverconfig.Eval(p.Info().ConfigSchema, json.RawMessage(raw), nil, nil)
		require.NoError(t, err)
		return p.Configure(t.Context(), config)
	}
	require.NoError(t, configure(`{}`))
	require.NoError(t, configure(`{"period":"30s","match":[{"type":"gpu","subsystem":"pci","class":"0302","numa_node":1,"nodes":["/dev/kfd"]},{"type":"serial","subsystem":"usb","vendor":"0403"}]}`))
	err := configure(`{"match":[{"type":"","subsystem":"../x","class":"xyz","vendor":"0x1","nodes":["kfd"],"env":"1A","permissions":"x"}]}`)
	for _, want := range []string{`match[0].type`, `match[0].subsystem is "../x"`, `match[0].class is "xyz": must be hexadecimal`, `nodes is "kfd"`, `env is "1A"`, `permissions is "x"`} {
		require.ErrorContains(t, err, want)
	}
	require.ErrorContains(t, configure(`{"period":"1ms"}`), "at least a second")
	_, err = sysfs.New(sysfs.Config{Match: []sysfs.Match{{}}}).Fingerprint(t.Context())
	require.ErrorIs(t, err, device.ErrDisabled)
}

func TestSuite(t *testing.T) {
	tr := machine(t)
	make1 := func(*testing.T) device.Plugin {
		return tr.plugin(sysfs.Match{Type: "gpu", Subsystem: "pci", Class: "0302"}, sysfs.Match{Type: "serial", Subsystem: "usb"})
	}
	devicetest.Suite(t, devicetest.SuiteConfig{New: make1, Renew: func(t *testing.T, _ device.Plugin) device.Plugin { return make1(t) }})
}

// This machine's own devices: whatever there is can be listed, and its memory
// devices, which every Linux has, can be had.
func TestRealSys(t *testing.T) {
	if _, err := os.Stat("/sys/class/mem/null"); err != nil {
		t.Skip("no sysfs here: ", err)
	}
	entries, err := os.ReadDir("/sys/class")
	require.NoError(t, err)
	rules := []sysfs.Match{{Type: "memory", Subsystem: "mem"}, {Type: "any", Subsystem: "pci"}, {Type: "any", Subsystem: "usb"}}
	for _, e := range entries {
		rules = append(rules, sysfs.Match{Type: "any", Subsystem: e.Name()})
	}
	p := sysfs.New(sysfs.Config{Match: rules})
	groups := look(t, p)
	require.Equal(t, "memory", groups[0].Type)
	require.True(t, slices.ContainsFunc(groups[0].Instances, func(in device.Instance) bool { return in.ID == "null" && in.Healthy }))
	r, err := p.Reserve(t.Context(), []string{"null", "zero"})
	require.NoError(t, err)
	require.Equal(t, []driver.Device{{HostPath: "/dev/null", TaskPath: "/dev/null", Permissions: "rw"}, {HostPath: "/dev/zero", TaskPath: "/dev/zero", Permissions: "rw"}}, r.Devices)
	pci, err := os.ReadDir("/sys/bus/pci/devices")
	if err == nil && len(pci) > 0 {
		require.True(t, slices.ContainsFunc(groups, func(g device.Group) bool {
			return slices.ContainsFunc(g.Instances, func(in device.Instance) bool { return in.PCIBusID == pci[0].Name() })
		}))
	}
}
