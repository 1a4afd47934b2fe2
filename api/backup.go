// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"io"
	"net/http"

	"github.com/nodekeep/nodekeep/driver"
)

// backuper is an agent whose state file can be copied. *nodekeep.Agent is one.
type backuper interface {
	Backup(w io.Writer) (int64, error)
}

// backup answers GET /v1/backup: the state file as raw bytes, with everything the
// node knows and the tasks' environment in clear.
func (s *server) backup(w http.ResponseWriter, _ *http.Request) error {
	b, ok := s.Agent.(backuper)
	if !ok {
		return driver.ErrNotImplemented
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	n, err := b.Backup(w)
	if err != nil && n > 0 {
		panic(http.ErrAbortHandler) // the client must not take what it got for all of it
	}
	return err
}

// Backup writes a copy of the node's state file to w. After an error what w got is
// no backup.
func (c *Client) Backup(ctx context.Context, w io.Writer) (int64, error) {
	resp, err := c.send(ctx, http.MethodGet, "/v1/backup", nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return io.Copy(w, &body{resp.Body, c})
}
