// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivermanager

import (
	"encoding/json"
	"fmt"

	"github.com/nodekeep/nodekeep/state"
)

// StateRecords keeps records in an agent's store:
//
//	v1 / drivermanager / <program> / record
func StateRecords(s state.Store) Records { return stateRecords{s} }

type stateRecords struct{ s state.Store }

var (
	recordsPath = state.Path{"v1", "drivermanager"}
	recordSlot  = state.Slot[json.RawMessage]{Key: "record", Version: 1}
)

// Load leaves out what cannot be read: its process is found by Sweep.
func (r stateRecords) Load() (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	err := r.s.View(func(tx state.Tx) error {
		for _, name := range tx.Nodes(recordsPath) {
			if rec, ok, err := recordSlot.Load(tx, recordsPath.Join(name)); err == nil && ok {
				out[name] = rec
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("drivermanager: records: %w", err)
	}
	return out, nil
}

func (r stateRecords) Save(name string, rec json.RawMessage) error {
	raw, err := recordSlot.Encode(rec)
	if err == nil {
		err = r.s.Update(func(tx state.Tx) error { return tx.Put(recordsPath.Join(name), recordSlot.Key, raw) })
	}
	if err != nil {
		return fmt.Errorf("drivermanager: record of %s: %w", name, err)
	}
	return nil
}

func (r stateRecords) Delete(name string) error {
	err := r.s.Update(func(tx state.Tx) error { return tx.DeleteTree(recordsPath.Join(name)) })
	if err != nil {
		return fmt.Errorf("drivermanager: record of %s: %w", name, err)
	}
	return nil
}
