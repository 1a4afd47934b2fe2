// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Command embed is the smallest node: one agent, one alloc, no control plane.
// Stop it with Ctrl-C and start it again: the server was never touched.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/driver/rawexec"
	"github.com/nodekeep/nodekeep/spec"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	agent, err := nodekeep.New(nodekeep.Config{
		DataDir: "/var/lib/mynode",
		Drivers: []nodekeep.DriverFunc{rawexec.New(rawexec.Config{Enabled: true})},
	})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		err := agent.Apply(ctx, nodekeep.Desired{Index: 1, Allocs: []*spec.Alloc{{
			ID: "web-0", JobID: "web", Group: "web",
			Tasks: []spec.Task{{
				Name: "server", Driver: "raw_exec",
				Config: []byte(`{"command": "python3", "args": ["-m", "http.server", "8080"]}`),
			}},
		}}})
		if err != nil {
			log.Print(err) // what cannot run here, or a disk that is full: the rest goes on
		}
		for e, err := range agent.Events(ctx, 0) { // what happened, also before, and what happens
			if err == nil {
				log.Printf("%s %s: %s: %s", e.AllocID, e.Task, e.Event.Kind, e.Event.Text())
			}
		}
	}()
	if err := agent.Run(ctx); err != nil { // returns when ctx ends; the tasks go on
		log.Fatal(err)
	}
}
