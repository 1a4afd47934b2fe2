// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin"
)

// BenchmarkStartTask is what the wire costs a start: the same driver in memory, in
// this process and in one of its own, in turn. The figure is the difference; it
// should be below two milliseconds.
func BenchmarkStartTask(b *testing.B) {
	l, _ := launch(b, "fake")
	p, err := driverplugin.Launch(b.Context(), self(b), l)
	require.NoError(b, err)
	defer func() { require.NoError(b, p.Close(b.Context())) }()
	var took [2]time.Duration
	drivers := [2]driver.Driver{newFake("fake"), p.Driver()}
	n := 0
	for b.Loop() {
		for i, d := range drivers {
			cfg := fullTask
			cfg.ID = fmt.Sprintf("alloc/task/%d", n)
			began := time.Now()
			_, err := d.Start(b.Context(), cfg)
			took[i] += time.Since(began)
			require.NoError(b, err)
			require.NoError(b, d.Destroy(b.Context(), driver.TaskRef{ID: cfg.ID}, true))
		}
		n++
	}
	ms := func(d time.Duration) float64 { return d.Seconds() * 1000 / float64(n) }
	b.ReportMetric(ms(took[0]), "ms/in-process")
	b.ReportMetric(ms(took[1]), "ms/over-the-wire")
	b.ReportMetric(ms(took[1]-took[0]), "ms/difference")
}
