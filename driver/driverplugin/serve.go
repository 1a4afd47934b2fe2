// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin

import (
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin/driverpb"
	"github.com/nodekeep/nodekeep/internal/pluginpb"
	"github.com/nodekeep/nodekeep/internal/pluginproc"
	"github.com/nodekeep/nodekeep/internal/pluginwire"
)

// Logger is the logger of a driver that is served: structured lines on stderr,
// which the agent logs at their own level and under the driver's name. It never
// fails, also when nobody reads. Every level is written; the agent filters.
func Logger() hclog.Logger { return pluginproc.Logger() }

// Serve serves d to the agent that started this program until the agent ends it:
// the whole main of a driver. Called as a program of its own it explains itself
// on stderr and exits with 1. An agent that dies does not end it: the next one
// finds it again, with its tasks and its configuration. A panic of a method is
// that call's error and in the log.
//
// What the program prints goes to the agent's log too; only before Serve nothing
// may be printed on stdout, where agents read who answers. SIGINT and SIGPIPE are
// ignored: the one is meant for the agent, the other comes of its death.
func Serve(d driver.Driver) {
	pluginproc.Serve("driver", "a task driver", func(to grpc.ServiceRegistrar) {
		info := d.Info()
		base := &pluginwire.Server{Type: pluginpb.PluginType_DRIVER, Name: info.Name, Version: info.Version, Schema: info.ConfigSchema}
		if c, ok := d.(driver.Configurer); ok {
			base.Configure = c.Configure
		}
		s := newServer(d)
		pluginpb.RegisterBasePluginServer(to, base)
		driverpb.RegisterDriverServer(to, s)
		driverpb.RegisterExtensionServer(to, s)
	})
}
