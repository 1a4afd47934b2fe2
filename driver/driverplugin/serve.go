// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin/driverpb"
	"github.com/nodekeep/nodekeep/internal/pluginpb"
	"github.com/nodekeep/nodekeep/internal/pluginproc"
	"github.com/nodekeep/nodekeep/internal/pluginwire"
)

// maxRequest is the largest request we take. Agents send larger ones than the 4 MiB
// that is usual.
const maxRequest = 64 << 20

// Logger is the logger of a driver that is served: structured lines on stderr,
// which the agent logs at their own level and under the driver's name. It never
// fails, also when nobody reads. Every level is written; the agent filters.
func Logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: os.Stderr, JSONFormat: true})
}

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
	h := pluginproc.Handshake
	if os.Getenv(h.MagicCookieKey) != h.MagicCookieValue {
		fmt.Fprintf(os.Stderr, "%s is a task driver. An agent starts it; put it into the agent's plugin directory.\n", os.Args[0])
		os.Exit(1)
	}
	signal.Ignore(os.Interrupt, syscall.SIGPIPE)
	log := Logger()
	info := d.Info()
	base := &pluginwire.Server{Type: pluginpb.PluginType_DRIVER, Name: info.Name, Version: info.Version, Schema: info.ConfigSchema}
	if c, ok := d.(driver.Configurer); ok {
		base.Configure = c.Configure
	}
	at := make(chan *plugin.ReattachConfig, 1)
	over := make(chan struct{})
	var announce sync.WaitGroup
	announce.Go(func() {
		select {
		case r := <-at:
			fmt.Printf("%d|%d|%s|%s|%s|\n", plugin.CoreProtocolVersion, r.ProtocolVersion, r.Addr.Network(), r.Addr.String(), r.Protocol)
		case <-over:
		}
	})
	// As a "test" go-plugin leaves stdout and stderr alone. Otherwise it puts pipes
	// in their place that the first agent alone can read: under the next one a
	// program that prints would stand still.
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: h,
		Plugins:         plugin.PluginSet{"base": service{}, "driver": service{base: base, driver: newServer(d)}},
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			guard := guard{log: log}
			return grpc.NewServer(append(slices.Clone(opts), grpc.MaxRecvMsgSize(maxRequest),
				grpc.ChainUnaryInterceptor(guard.unary), grpc.ChainStreamInterceptor(guard.stream))...)
		},
		Logger: log.Named("plugin"),
		Test:   &plugin.ServeTestConfig{ReattachConfigCh: at},
	})
	close(over)
	announce.Wait()
}

// service registers what a plugin serves; go-plugin asks for one of each name,
// and all share a connection.
type service struct {
	plugin.NetRPCUnsupportedPlugin
	base   *pluginwire.Server
	driver *server
}

// GRPCServer implements plugin.GRPCPlugin.
func (s service) GRPCServer(_ *plugin.GRPCBroker, to *grpc.Server) error {
	if s.base != nil {
		pluginpb.RegisterBasePluginServer(to, s.base)
		driverpb.RegisterDriverServer(to, s.driver)
		driverpb.RegisterExtensionServer(to, s.driver)
	}
	return nil
}

// GRPCClient implements plugin.GRPCPlugin; nobody dispenses from a server.
func (service) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, plugin.ErrProcessNotFound
}

// guard keeps one call's panic from ending all tasks' driver.
type guard struct{ log hclog.Logger }

func (g guard) recovered(method string, r any) error {
	g.log.Error("panic in a method of the driver", "method", method, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
	return status.Error(codes.Unknown, fmt.Sprintf("the driver panicked in %s: %s", method[strings.LastIndexByte(method, '/')+1:], valid(fmt.Sprint(r))))
}

func (g guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = g.recovered(info.FullMethod, r)
		}
	}()
	return next(ctx, req)
}

func (g guard) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = g.recovered(info.FullMethod, r)
		}
	}()
	return next(srv, ss)
}
