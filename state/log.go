// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Log is a bounded durable log of events in the node Path, which nothing else
// may use. It is plain data: any number of equal Logs are the same log. A record
// is appended in the transaction of the change it tells of, so neither is there
// without the other.
//
//	Path          log: {last, bytes, …}
//	└── records   one value per record, its name the token, big endian
//
// One consumer acknowledges what it has taken over; any number of others read by
// token. When a bound is passed the oldest records are dropped, and these are
// the acknowledged ones first because tokens are acknowledged in order.
type Log struct {
	Path Path
	// MaxRecords is how many records are kept. 0 means 10,000.
	MaxRecords uint64
	// MaxBytes is how many bytes of payload are kept. 0 means 8 MiB.
	MaxBytes uint64
}

// Record is one entry of a Log. Tokens start at 1, grow by 1 and never repeat.
type Record struct {
	Token uint64
	Data  []byte
}

type logMeta struct {
	First uint64 `json:"first"` // the oldest kept, Last+1 if there is none
	Last  uint64 `json:"last"`
	Acked uint64 `json:"acked"`
	Bytes uint64 `json:"bytes"`
}

var logSlot = Slot[logMeta]{Key: "log", Version: 1}

const recordVersion = 1

func (l Log) load(tx Tx) (logMeta, error) {
	m, ok, err := logSlot.Load(tx, l.Path)
	if errors.Is(err, ErrCorrupt) {
		return l.rebuild(tx), nil
	}
	if !ok {
		m.First = 1
	}
	return m, err
}

// rebuild makes the head from the records: a damaged value must not keep every
// later transition from being written.
func (l Log) rebuild(tx Tx) logMeta {
	m := logMeta{First: 1}
	for _, key := range tx.Keys(l.records()) {
		if len(key) != 8 {
			continue
		}
		if m.Last == 0 {
			m.First = binary.BigEndian.Uint64([]byte(key))
		}
		m.Last = binary.BigEndian.Uint64([]byte(key))
		data, _ := unsealRecord(tx.Get(l.records(), key))
		m.Bytes += uint64(len(data))
	}
	return m
}

func (l Log) records() Path { return l.Path.Join("records") }

func recordKey(token uint64) string {
	return string(binary.BigEndian.AppendUint64(nil, token))
}

// Append adds a record and returns its token. A payload over MaxBytes is an error.
func (l Log) Append(tx Tx, payload []byte) (token uint64, err error) {
	maxRecords, maxBytes := l.MaxRecords, l.MaxBytes
	if maxRecords == 0 {
		maxRecords = 10_000
	}
	if maxBytes == 0 {
		maxBytes = 8 << 20
	}
	size := uint64(len(payload))
	if size > maxBytes {
		return 0, fmt.Errorf("state: log record of %d bytes, the log holds %d", size, maxBytes)
	}
	m, err := l.load(tx)
	if err != nil {
		return 0, err
	}
	p := l.records()
	for m.First <= m.Last && (m.Last-m.First+1 >= maxRecords || m.Bytes+size > maxBytes) {
		key := recordKey(m.First)
		if data, err := unsealRecord(tx.Get(p, key)); err == nil {
			m.Bytes -= min(m.Bytes, uint64(len(data)))
		}
		if err := tx.Delete(p, key); err != nil {
			return 0, err
		}
		m.First++
	}
	if m.First > m.Last {
		m.Bytes = 0
	}
	m.Last++
	m.Bytes += size
	if err := tx.Put(p, recordKey(m.Last), seal(recordVersion, payload)); err != nil {
		return 0, err
	}
	return m.Last, logSlot.Save(tx, l.Path, m)
}

// Read returns up to max records with tokens above after, oldest first; max 0
// means all. It returns ErrCompacted if the record that comes next was dropped
// or is damaged, or after was never given out because an older state was put
// back.
func (l Log) Read(tx Tx, after uint64, max int) ([]Record, error) {
	m, err := l.load(tx)
	if err != nil {
		return nil, err
	}
	if after < m.First-1 || after > m.Last {
		return nil, fmt.Errorf("%w: %d to %d are kept, asked for were those after %d", ErrCompacted, m.First, m.Last, after)
	}
	n := m.Last - after
	if max > 0 {
		n = min(n, uint64(max))
	}
	out := make([]Record, 0, n)
	p := l.records()
	for token := after + 1; token <= after+n; token++ {
		data, err := unsealRecord(tx.Get(p, recordKey(token)))
		if err != nil && len(out) > 0 {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%w: record %d of %s: %w", ErrCompacted, token, l.Path, err)
		}
		out = append(out, Record{token, data})
	}
	return out, nil
}

func unsealRecord(raw []byte) ([]byte, error) {
	version, data, err := unseal(raw)
	if err == nil && version > recordVersion {
		err = ErrTooNew
	}
	return data, err
}

// Bounds returns the tokens of the oldest and the newest record that are kept;
// first is last+1 if there is none. Reading after first-1 reads all there is,
// reading after last what comes next.
func (l Log) Bounds(tx Tx) (first, last uint64, err error) {
	m, err := l.load(tx)
	return m.First, m.Last, err
}

// Ack records that the consumer has taken over all records up to token. It is
// idempotent and never goes back; acknowledged records stay readable until the
// bounds drop them.
func (l Log) Ack(tx Tx, token uint64) error {
	m, err := l.load(tx)
	if err != nil {
		return err
	}
	if token > m.Last {
		return errors.New("state: acknowledged a log record that was never given out")
	}
	if token <= m.Acked {
		return nil
	}
	m.Acked = token
	return logSlot.Save(tx, l.Path, m)
}

// Acked returns the highest acknowledged token, 0 if there is none: where the
// consumer goes on after a restart.
func (l Log) Acked(tx Tx) (uint64, error) {
	m, err := l.load(tx)
	return m.Acked, err
}
