// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package pluginproc

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
)

// maxRequest is the largest request a plugin takes. Agents send larger ones than
// the 4 MiB that is usual.
const maxRequest = 64 << 20

// Logger is the logger of a plugin that is served: structured lines on stderr. It
// never fails, also when nobody reads. Every level is written; the agent filters.
func Logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: os.Stderr, JSONFormat: true})
}

// Serve serves what register registers to the agent that started this program,
// until the agent ends it. kind, such as "driver", is what agents call it; noun,
// such as "a task driver", is for whoever starts the program by hand, which then
// exits with 1. A panic of a method is that call's error and in the log.
// SIGINT and SIGPIPE are ignored: the one is meant for the agent, the other comes
// of its death.
func Serve(kind, noun string, register func(grpc.ServiceRegistrar)) {
	if os.Getenv(Handshake.MagicCookieKey) != Handshake.MagicCookieValue {
		fmt.Fprintf(os.Stderr, "%s is %s. An agent starts it; put it into the agent's plugin directory.\n", os.Args[0], noun)
		os.Exit(1)
	}
	signal.Ignore(os.Interrupt, syscall.SIGPIPE)
	log := Logger()
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
		HandshakeConfig: Handshake,
		Plugins:         plugin.PluginSet{"base": service{}, kind: service{register: register}},
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			guard := guard{log: log, kind: kind}
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
	register func(grpc.ServiceRegistrar)
}

// GRPCServer implements plugin.GRPCPlugin.
func (s service) GRPCServer(_ *plugin.GRPCBroker, to *grpc.Server) error {
	if s.register != nil {
		s.register(to)
	}
	return nil
}

// GRPCClient implements plugin.GRPCPlugin; nobody dispenses from a server.
func (service) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, plugin.ErrProcessNotFound
}

// guard keeps one call's panic from ending all others.
type guard struct {
	log  hclog.Logger
	kind string
}

func (g guard) recovered(method string, r any) error {
	text := strings.ToValidUTF8(fmt.Sprint(r), "\uFFFD")
	g.log.Error("panic in a method of the "+g.kind, "method", method, "panic", text, "stack", string(debug.Stack()))
	return status.Error(codes.Unknown, fmt.Sprintf("the %s panicked in %s: %s", g.kind, method[strings.LastIndexByte(method, '/')+1:], text))
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
