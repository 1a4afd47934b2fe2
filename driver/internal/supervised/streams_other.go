// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package supervised

import (
	"context"
	"errors"
	"io"

	"github.com/nodekeep/nodekeep/driver"
)

// streams connect us with a command. Only Linux has supervisors to run one.
type streams struct {
	child [3]int
	in    io.Writer
	outs  []*outlet
}

type outlet struct{}

func openStreams(string, driver.ExecRequest, bool) (*streams, error) {
	return nil, errors.ErrUnsupported
}

func (s *streams) connect(driver.ExecRequest) error                   { return nil }
func (s *streams) closeChild()                                        {}
func (s *streams) close()                                             {}
func (s *streams) endInput()                                          {}
func (s *streams) resize(<-chan driver.TerminalSize, <-chan struct{}) {}
func (o *outlet) copy(context.CancelCauseFunc)                        {}
func (o *outlet) finish()                                             {}
