// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"syscall"
	"testing"
	"time"
)

// BenchmarkStart makes a container whose program ends at once, and destroys it. CPU
// is what creator, init and program took.
func BenchmarkStart(b *testing.B) {
	for _, c := range []struct {
		name string
		opts map[string]any
	}{
		{"default", nil}, {"unconfined", map[string]any{"seccomp": "unconfined"}},
		{"init", map[string]any{"init": true}}, {"user-namespace", map[string]any{"user_namespace": true}},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := newRig(b)
			r.node.AllowUnconfined, r.node.IDs = true, IDs{Host: 200000, Size: 65536}
			opts := map[string]any{"command": "/bin/true"}
			for k, v := range c.opts {
				opts[k] = v
			}
			before := childCPU()
			for b.Loop() {
				s, err := r.build(opts)
				if err != nil {
					b.Fatal(err)
				}
				k, err := r.start(s)
				if err != nil {
					b.Fatal(err)
				}
				k.wait()
				r.again()
			}
			b.ReportMetric(float64((childCPU()-before).Milliseconds())/float64(b.N), "cpu-ms/op")
		})
	}
}

func childCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkBeside runs a command beside a task.
func BenchmarkBeside(b *testing.B) {
	r := newRig(b)
	s, err := r.build(map[string]any{"command": "sleep", "args": []string{"60"}})
	if err != nil {
		b.Fatal(err)
	}
	k, err := r.start(s)
	if err != nil {
		b.Fatal(err)
	}
	before := childCPU()
	for b.Loop() {
		if _, code, err := k.beside(nil, "true"); err != nil || code != 0 {
			b.Fatal(code, err)
		}
	}
	b.ReportMetric(float64((childCPU()-before).Milliseconds())/float64(b.N), "cpu-ms/op")
}

// BenchmarkBuild works a container out.
func BenchmarkBuild(b *testing.B) {
	task, config, node := plain()
	c := options(b, config)
	for b.Loop() {
		if _, _, err := Build(task, c, node); err != nil {
			b.Fatal(err)
		}
	}
}
