// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/device/deviceplugin"
	"github.com/nodekeep/nodekeep/device/sysfs"
	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/driver/driverplugin"
	"github.com/nodekeep/nodekeep/drivermanager"
)

// pluginFile is what --plugin-config names.
type pluginFile struct {
	// Plugins are settings by program.
	Plugins map[string]struct {
		Disabled bool            `json:"disabled"`
		Args     []string        `json:"args"`
		Config   json.RawMessage `json:"config"` // as the driver's own documentation has it, in JSON
	} `json:"plugins"`
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
	// MaxBackoff is the longest pause before a program that does not stay is started
	// again, such as "1m".
	MaxBackoff string `json:"max_backoff"`
}

// bindPlugins declares the flags about drivers that are programs of their own.
func bindPlugins(fs *flag.FlagSet) func() (drivermanager.Config, error) {
	dir := fs.String("plugin-dir", "", "`DIR` with drivers that are programs of their own; all of them are used")
	file := fs.String("plugin-config", "", `JSON `+"`FILE`"+`: {"plugins": {"PROGRAM": {"args": [], "config": {}, "disabled": false}}, "allow": [], "deny": [], "max_backoff": "1m"}`)
	return func() (cfg drivermanager.Config, err error) {
		if *dir != "" {
			path, err := filepath.Abs(*dir)
			if err != nil {
				return cfg, err
			}
			if st, err := os.Stat(path); err != nil || !st.IsDir() {
				return cfg, usage("--plugin-dir %s: is no directory", *dir)
			}
			cfg.Launchers = []drivermanager.Launcher{driverplugin.Dir(path)}
		}
		if *file == "" {
			return cfg, nil
		}
		raw, err := os.ReadFile(*file)
		if err != nil {
			return cfg, fmt.Errorf("--plugin-config: %w", err)
		}
		f, err := readPluginFile(raw)
		if err != nil {
			return cfg, fmt.Errorf("--plugin-config %s: %w", *file, err)
		}
		if f.MaxBackoff != "" {
			if cfg.MaxBackoff, err = time.ParseDuration(f.MaxBackoff); err != nil {
				return cfg, fmt.Errorf("--plugin-config %s: max_backoff: %w", *file, err)
			}
		}
		cfg.Allow, cfg.Deny, cfg.Programs = f.Allow, f.Deny, map[string]drivermanager.Settings{}
		for name, p := range f.Plugins {
			cfg.Programs[name] = drivermanager.Settings{Disabled: p.Disabled, Args: p.Args, Config: p.Config}
		}
		return cfg, nil
	}
}

// bindDevices declares the flag about device plugins. Their settings are in the file
// of the drivers' (cfg), from which those of device plugins are taken out. Devices that Linux shows are offered where rules for the
// program "sysfs" say so.
func bindDevices(fs *flag.FlagSet) func(cfg drivermanager.Config) (devicemanager.Config, error) {
	dir := fs.String("device-dir", "", "`DIR` with device plugins; all of them are used. It may be that of --plugin-dir")
	return func(cfg drivermanager.Config) (devicemanager.Config, error) {
		out := devicemanager.Config{Allow: cfg.Allow, Deny: cfg.Deny, MaxBackoff: cfg.MaxBackoff, Programs: map[string]devicemanager.Settings{},
			Launchers: []devicemanager.Launcher{devicemanager.InProcess(sysfs.New(sysfs.Config{}))}}
		if *dir != "" {
			path, err := filepath.Abs(*dir)
			if err != nil {
				return out, err
			}
			if st, err := os.Stat(path); err != nil || !st.IsDir() {
				return out, usage("--device-dir %s: is no directory", *dir)
			}
			out.Launchers = append(out.Launchers, deviceplugin.Dir(path))
		}
		drivers := map[string]bool{}
		for _, l := range cfg.Launchers {
			list, err := l.List()
			if err != nil {
				return out, err
			}
			for _, p := range list {
				drivers[p.Name] = true
			}
		}
		// Each side gets the settings of the programs that it has.
		for _, l := range out.Launchers {
			list, err := l.List()
			if err != nil {
				return out, err
			}
			for _, p := range list {
				if set, ok := cfg.Programs[p.Name]; ok {
					out.Programs[p.Name] = devicemanager.Settings{Disabled: set.Disabled, Args: set.Args, Config: set.Config}
					if !drivers[p.Name] {
						delete(cfg.Programs, p.Name)
					}
				}
			}
		}
		return out, nil
	}
}

func readPluginFile(raw []byte) (f pluginFile, err error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	err = dec.Decode(&f)
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("there is something after the end")
		}
	}
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	at := int64(-1)
	switch {
	case errors.As(err, &syntax):
		at = syntax.Offset
	case errors.As(err, &typ):
		at = typ.Offset
	}
	if at >= 0 && at <= int64(len(raw)) {
		err = fmt.Errorf("line %d: %w", 1+bytes.Count(raw[:at], []byte("\n")), err)
	}
	return f, err
}

var nodeCommand = command{
	name: "node", short: "shows the node: its drivers and devices, and their health",
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, args []string) error {
			if len(args) > 0 {
				return usage("node takes no arguments: another node is named with --data")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			n, err := c.Node(ctx)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(n)
			}
			return printNode(a.stdout, n)
		}
	},
}

func printNode(w io.Writer, n api.Node) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range [][2]string{{"id", n.ID}, {"name", n.Name}, {"datacenter", n.Datacenter}, {"region", n.Region}, {"class", n.Class}, {"pool", n.Pool}} {
		if row[1] != "" {
			fmt.Fprintf(tw, "%s\t%s\n", row[0], clean(row[1]))
		}
	}
	fmt.Fprint(tw, "\nDRIVER\tHEALTH\tVERSION\tDESCRIPTION\n")
	for _, name := range slices.Sorted(maps.Keys(n.Drivers)) {
		d := n.Drivers[name]
		health := "unhealthy"
		switch {
		case d.Healthy:
			health = "healthy"
		case !d.Detected:
			health = "undetected"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", clean(name), health, or(d.Version), clean(d.Description))
	}
	if len(n.Devices) > 0 {
		fmt.Fprint(tw, "\nDEVICE\tHEALTH\tTASK\tDESCRIPTION\n")
	}
	for _, g := range n.Devices {
		for _, in := range g.Instances {
			health, task := "unhealthy", "-"
			if in.Healthy {
				health = "healthy"
			}
			if o, ok := g.Owners[in.ID]; ok {
				task = o.AllocID + "/" + o.Task
			}
			fmt.Fprintf(tw, "%s[%s]\t%s\t%s\t%s\n", clean(g.ID()), clean(in.ID), health, clean(task), clean(in.Description))
		}
	}
	if len(n.Attributes) > 0 {
		fmt.Fprint(tw, "\nATTRIBUTE\tVALUE\n")
	}
	for _, k := range slices.Sorted(maps.Keys(n.Attributes)) {
		fmt.Fprintf(tw, "%s\t%s\n", clean(k), clean(n.Attributes[k]))
	}
	return tw.Flush()
}

func or(s string) string { return clean(cmp.Or(s, "-")) }

var pluginsCommand = command{
	name: "plugins", short: "shows the programs that are drivers or find devices, and what is wrong with them",
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, args []string) error {
			if len(args) > 0 {
				return usage("plugins takes no arguments: another node is named with --data")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := c.Plugins(ctx)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(list)
			}
			return printPlugins(a.stdout, list)
		}
	},
}

func printPlugins(w io.Writer, list []api.Plugin) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "PROGRAM\tTYPE\tNAME\tHEALTH\tVERSION\tPID\tRESTARTS\tDESCRIPTION")
	for _, p := range list {
		pid := dash(p.PID)
		if p.BuiltIn {
			pid = "built in"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", clean(p.Program), p.Type, or(p.Name), or(string(p.Health)), or(p.Version), pid,
			strconv.Itoa(p.Restarts), clean(p.Description))
	}
	return tw.Flush()
}
