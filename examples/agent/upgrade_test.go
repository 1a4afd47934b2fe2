// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A job that mounts a directory the node shares, with a driver that mounts nothing,
// fails with the reason. That there is no
// upgrade to commit is no error.
func TestVolumesAndUpgradeCommands(t *testing.T) {
	b := newBox(t)
	dir := t.TempDir()
	b.serve("--host-volume", "data="+dir)
	job := func(source string) string {
		return b.file("vol-"+source+".hcl", `job "vol-`+source+`" {
		  group "g" {
			volume "v" {
				type   = "host"
				source = "`+source+`"
			}
			task "t" {
				driver = "raw_exec"
				config {
					command = "/bin/true"
				}
				volume_mount {
					volume      = "v"
					destination = "/v"
				}
			}
		  }
		}`)
	}
	r := b.nk("apply", "--wait", "complete", job("data"))
	require.Equal(t, 1, r.code)
	require.Contains(t, r.out+r.err, "mounts no volumes")
	require.Equal(t, "no upgrade is pending\n", b.ok("commit-upgrade"))
	require.JSONEq(t, `{"pending": false}`, b.ok("commit-upgrade", "--json"))
	b.refused(2, "takes no arguments", "commit-upgrade", "now")
	b.ok("stop", "--all")
}
