// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package device_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/device/devicetest"
)

func TestParseAttribute(t *testing.T) {
	for text, want := range map[string]device.Attribute{
		"11": device.Int(11, ""), "-3": device.Int(-3, ""), "1.5": device.Float(1.5, ""), "1e3": device.Float(1000, ""),
		"11 GiB": device.Int(11, "GiB"), "11GiB": device.Int(11, "GiB"), "  2.5 GB/s ": device.Float(2.5, "GB/s"), "3 kB": device.Int(3, "kB"), "3 KB": device.Int(3, "KB"),
		"7MW": device.Int(7, "MW"), "7 mW": device.Int(7, "mW"), "200W": device.Int(200, "W"), "1.1 GHz": device.Float(1.1, "GHz"),
		"true": device.Bool(true), "false": device.Bool(false), "True": device.Text("True"),
		"Tesla T4": device.Text("Tesla T4"), "": device.Text(""), "W": device.Text("W"), "GiB": device.Text("GiB"), "1 parsec": device.Text("1 parsec"),
		"NaN": device.Text("NaN"), "Inf": device.Text("Inf"), "infW": device.Text("infW"), "0x1p4": device.Text("0x1p4"), "1_000": device.Text("1_000"),
		"99999999999999999999": device.Float(1e20, ""), "1e999": device.Text("1e999"),
	} {
		got := device.ParseAttribute(text)
		require.Equal(t, want, got, text)
		require.NoError(t, got.Validate(), text)
		require.Equal(t, got, device.ParseAttribute(got.String()), "what it prints is read as the same: %s", text)
	}
}

func TestCompare(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
		ok   bool
	}{
		{"1 GiB", "1024 MiB", 0, true},
		{"1 GiB", "1 GB", 1, true},
		{"1000 mW", "1 W", 0, true},
		{"0.5 GHz", "500 MHz", 0, true},
		{"1 EiB", "1152921504606846975", 0, false}, // bytes and a plain number
		{"9007199254740993", "9007199254740992", 1, true},
		{"9007199254740993", "9007199254740992.0", 1, true}, // no rounding to floats
		{"2 GiB/s", "1 GiB", 0, false},
		{"1 GHz", "1 W", 0, false},
		{"a", "b", -1, true}, {"a", "1", 0, false}, {"true", "false", 1, true}, {"true", "a", 0, false},
	} {
		got, ok := device.ParseAttribute(tc.a).Compare(device.ParseAttribute(tc.b))
		require.Equal(t, tc.ok, ok, tc)
		if ok {
			require.Equal(t, tc.want, got, tc)
			back, _ := device.ParseAttribute(tc.b).Compare(device.ParseAttribute(tc.a))
			require.Equal(t, -tc.want, back, tc)
		}
	}
	_, ok := device.Attribute{}.Compare(device.Attribute{})
	require.False(t, ok)
}

func TestGroupName(t *testing.T) {
	g := devicetest.Make("nvidia/gpu/Tesla K80 1/2", nil)
	for _, name := range []string{"gpu", "nvidia/gpu", "nvidia/gpu/Tesla K80 1/2"} {
		require.True(t, g.Is(name), name)
	}
	for _, name := range []string{"", "nvidia", "Tesla K80 1/2", "nvidia/gpu/", "nvidia/gpu/Tesla K80 1", "amd/gpu", "GPU"} {
		require.False(t, g.Is(name), name)
	}
}

func TestValidate(t *testing.T) {
	good := devicetest.Make("v/t/n", map[string]device.Attribute{"memory": device.Int(1, "GiB")}, "a", "b")
	require.NoError(t, device.Validate(nil))
	require.NoError(t, device.Validate([]device.Group{good, devicetest.Make("v/t/m", nil, "a")}))
	for want, groups := range map[string][]device.Group{
		"is there twice":      {good, good},
		"vendor of 0 bytes":   {devicetest.Make("/t/n", nil)},
		"type of 0 bytes":     {devicetest.Make("v//n", nil)},
		"name of 4097 bytes":  {devicetest.Make("v/t/"+strings.Repeat("x", 4097), nil)},
		`instance "a"`:        {devicetest.Make("v/t/n", nil, "a", "a")},
		`instance ""`:         {devicetest.Make("v/t/n", nil, "")},
		"has 0 values":        {devicetest.Make("v/t/n", map[string]device.Attribute{"x": {}}, "a")},
		"unknown unit":        {devicetest.Make("v/t/n", map[string]device.Attribute{"x": device.Int(1, "furlong")})},
		"is no number":        {devicetest.Make("v/t/n", map[string]device.Attribute{"x": {Text: new(string), Unit: "W"}})},
		"no finite number":    {devicetest.Make("v/t/n", map[string]device.Attribute{"x": device.Float(math.NaN(), "")})},
		"1025 groups and":     make([]device.Group, 1025),
		"65537 instances, at": {{Vendor: "v", Type: "t", Name: "n", Instances: make([]device.Instance, 1<<16+1)}},
	} {
		require.ErrorContains(t, device.Validate(groups), want)
	}
}

func FuzzParseAttribute(f *testing.F) {
	for _, s := range []string{"", "1", "1.5 GiB", "-0", "1e308 EiB", "true", "mW", "١٢", "1 /s"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, x, y string) {
		a, b := device.ParseAttribute(x), device.ParseAttribute(y)
		if err := a.Validate(); err != nil {
			t.Fatal(err)
		}
		if c, ok := device.ParseAttribute(a.String()).Compare(a); !ok || c != 0 {
			t.Fatalf("%q is printed as %q and read as something else", x, a.String())
		}
		c, ok := a.Compare(b)
		if d, ok2 := b.Compare(a); ok != ok2 || ok && c != -d {
			t.Fatal("not the same from both sides")
		}
	})
}
