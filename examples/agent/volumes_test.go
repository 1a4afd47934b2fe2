// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/hooks/core"
)

func TestVolumeFlag(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	parse := func(args ...string) error {
		fs := flag.NewFlagSet("", flag.ContinueOnError)
		fs.SetOutput(io.Discard)
		bindVolumes(fs)
		return fs.Parse(args)
	}
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"no name":      {[]string{"--host-volume", "=" + dir}, "must be NAME=PATH"},
		"no path":      {[]string{"--host-volume", "data="}, "must be NAME=PATH"},
		"nothing":      {[]string{"--host-volume", "data"}, "must be NAME=PATH"},
		"twice":        {[]string{"--host-volume", "data=" + dir, "--host-volume", "data=" + dir}, "was given before"},
		"a file":       {[]string{"--host-volume", "data=" + file}, "is no directory"},
		"is not there": {[]string{"--host-volume", "data=" + dir + "/nix"}, "is no directory"},
	} {
		t.Run(name, func(t *testing.T) {
			err := parse(tc.args...)
			require.ErrorContains(t, err, tc.says)
		})
	}
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	v := bindVolumes(fs)
	require.Nil(t, v.volumes)
	require.NoError(t, fs.Parse([]string{"--host-volume", "data=" + dir, "--host-volume=certs=" + dir + ":ro"}))
	require.Equal(t, core.HostVolumes{"data": {Path: dir}, "certs": {Path: dir, ReadOnly: true}}, v.volumes)
}
