// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin"
	"github.com/nodekeep/nodekeep/driver/drivertest"
)

// The contract's suite with the fake driver in another process. Its tasks live in
// that process: the next agent reattaches.
func TestSuiteWithFake(t *testing.T) {
	for _, role := range []string{"fake", "fake-plain"} {
		t.Run(role, func(t *testing.T) {
			p, _ := begin(t, role)
			t.Cleanup(func() { closePlugin(t, p) }) // the last one
			drivertest.Suite(t, drivertest.SuiteConfig{
				New: func(*testing.T) driver.Driver { return p.Driver() },
				Renew: func(t *testing.T, _ driver.Driver) driver.Driver {
					l, _ := launch(t, role)
					rec, pid := p.Record(), p.PID()
					p.Detach()
					var err error
					p, err = driverplugin.Reattach(bounded(t), rec, l)
					require.NoError(t, err)
					require.Equal(t, pid, p.PID())
					return p.Driver()
				},
				Task: func(_ *testing.T, _ driver.Driver, id string) driver.TaskConfig {
					return driver.TaskConfig{ID: id, Name: "task", Cgroup: "/sys/fs/cgroup/" + id}
				},
				Sleep:  json.RawMessage(`{"do":"sleep"}`),
				Exit:   func(code int) json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"do":"exit","code":%d}`, code)) },
				Ignore: json.RawMessage(`{"do":"ignore"}`),
				Bad:    json.RawMessage(`{"do":"bad"}`),
				Left: func(t *testing.T, c driver.TaskConfig) []string {
					_, err := p.Driver().(driver.Inspector).Inspect(bounded(t), c.ID)
					if errors.Is(err, driver.ErrTaskNotFound) {
						return nil
					}
					return []string{fmt.Sprintf("%s (%v)", c.ID, err)}
				},
			})
		})
	}
}
