// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodekeep/nodekeep/hooks/core"
)

// bindVolumes declares the flag about directories of this host that jobs may mount.
func bindVolumes(fs *flag.FlagSet) *volumeFlag {
	v := &volumeFlag{}
	fs.Var(v, "host-volume", "a directory that jobs may mount, as `NAME=PATH[:ro]`; may be given several times")
	return v
}

// volumeFlag collects --host-volume. Nil without any: jobs that ask for volumes are
// refused.
type volumeFlag struct{ volumes core.HostVolumes }

// String implements flag.Value.
func (v *volumeFlag) String() string { return "" }

// Set implements flag.Value. The directory must be there: a name that leads nowhere
// is better told now than when a job comes.
func (v *volumeFlag) Set(s string) error {
	name, path, ok := strings.Cut(s, "=")
	if !ok || name == "" || path == "" {
		return errors.New("must be NAME=PATH or NAME=PATH:ro")
	}
	vol := core.HostVolume{}
	vol.Path, vol.ReadOnly = strings.CutSuffix(path, ":ro")
	if _, twice := v.volumes[name]; twice {
		return fmt.Errorf("%q was given before", name)
	}
	var err error
	if vol.Path, err = filepath.Abs(vol.Path); err != nil {
		return err
	}
	if st, err := os.Stat(vol.Path); err != nil || !st.IsDir() {
		return fmt.Errorf("%s is no directory on this host", vol.Path)
	}
	if v.volumes == nil {
		v.volumes = core.HostVolumes{}
	}
	v.volumes[name] = vol
	return nil
}
