// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/state"
)

// copied is a fake whose state is data, of which it loses its hold at the end.
type copied struct {
	*fake
	data []byte
	err  error
}

func (c copied) Backup(w io.Writer) (int64, error) {
	n, err := io.Copy(w, bytes.NewReader(c.data))
	return n, errors.Join(err, c.err)
}

func TestBackup(t *testing.T) {
	dial := func(a Agent) *Client {
		srv := httptest.NewServer(Handler(Config{Agent: a}))
		t.Cleanup(srv.Close)
		c := &Client{socket: "test"}
		c.http.Transport = redirect(srv.Listener.Addr().String())
		return c
	}
	data := bytes.Repeat([]byte("state"), 100_000)
	var got bytes.Buffer
	n, err := dial(copied{newFake(), data, nil}).Backup(within(t), &got)
	require.NoError(t, err)
	require.EqualValues(t, len(data), n)
	require.Equal(t, data, got.Bytes())

	_, err = dial(copied{newFake(), data, state.ErrCorruptStore}).Backup(within(t), io.Discard)
	require.Error(t, err, "half of it is not all of it")
	_, err = dial(copied{newFake(), nil, state.ErrCorruptStore}).Backup(within(t), io.Discard)
	require.ErrorContains(t, err, "damaged file")
	_, err = dial(newFake()).Backup(within(t), io.Discard)
	require.ErrorIs(t, err, driver.ErrNotImplemented)
}

// redirect sends every request to addr.
type redirect string

func (r redirect) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Host = string(r)
	return http.DefaultTransport.RoundTrip(req)
}
