// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Command customhook is an agent with two hooks of its own: a port that each task
// leases (lease.go, 25 lines that survive a crash anywhere) and a program that is
// run at the phases of a task's life (script.go).
//
//	go run ./examples/customhook /tmp/node
//
// Kill it with any signal and start it again: the task goes on with its port.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/driver/rawexec"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: customhook DIRECTORY")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	pool := &ports{dir: filepath.Join(os.Args[1], "ports"), first: 8000, last: 8099}
	if err := os.MkdirAll(pool.dir, 0o700); err != nil {
		log.Fatal(err)
	}
	agent, err := nodekeep.New(nodekeep.Config{
		DataDir: os.Args[1],
		Drivers: []nodekeep.DriverFunc{rawexec.New(rawexec.Config{Enabled: true})},
		TaskHooks: func(std []taskrunner.HookFunc) []taskrunner.HookFunc {
			return append(std, portLease(pool), script("/bin/sh", "-c", `echo "$HOOK_PHASE with port $PORT" >>../../phases`))
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		err := agent.Apply(ctx, nodekeep.Desired{Index: 1, Allocs: []*spec.Alloc{{
			ID: "web-0", JobID: "web", Group: "web",
			Tasks: []spec.Task{{Name: "server", Driver: "raw_exec",
				Config: []byte(`{"command": "/bin/sh", "args": ["-c", "echo listening on $PORT; exec sleep 86400"]}`)}},
		}}})
		if err != nil {
			log.Print(err)
		}
	}()
	log.Print(agent.Run(ctx))
}
