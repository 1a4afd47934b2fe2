// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"io"
	"strconv"
)

// A frame, numbers big endian:
//
//	u32 length of what follows | u8 kind | u32 request id | (u8 tag | u32 length | bytes)*
//
// A request and its one reply carry the same id; replies come in any order.
// Numbers are decimal text, a zero is left out. Kinds and tags below are what
// version 1 froze: new ones get new numbers, a used number is never used again.
const (
	kHello    uint8 = 1
	kStart    uint8 = 2
	kWait     uint8 = 3 // answered when the task has exited and its logs are drained
	kSignal   uint8 = 4
	kStop     uint8 = 5 // signal, then SIGKILL to all of the task after the grace
	kList     uint8 = 6 // of one task if one is named
	kDestroy  uint8 = 7 // acknowledges the exit and forgets the task
	kShutdown uint8 = 8
	kReply    uint8 = 9
	kAdopt    uint8 = 10
	kLogs     uint8 = 11
	kEndLogs  uint8 = 12
	kExec     uint8 = 13 // on a connection of its own; answered when the command runs; one byte with three descriptors follows
	kExecWait uint8 = 14 // answered when the command of this connection has ended
	kHangup   uint8 = 15 // ends it
	// 16 and 17 are kept for the fence.
	kContain uint8 = 18 // Start of a task that a creator makes
	kExecIn  uint8 = 19 // Exec in such a one
)

const (
	tErr      uint8 = 1
	tTask     uint8 = 2 // in a reply: the fields of a Status follow
	tPath     uint8 = 3
	tArg      uint8 = 4
	tEnv      uint8 = 5
	tDir      uint8 = 6
	tStdout   uint8 = 7
	tStderr   uint8 = 8
	tMaxSize  uint8 = 9
	tMaxFiles uint8 = 10
	tCgroup   uint8 = 11
	tPID      uint8 = 12
	tStart    uint8 = 13
	tExited   uint8 = 14
	tCode     uint8 = 15
	tSignal   uint8 = 16
	tGrace    uint8 = 17 // nanoseconds
	tAdopted  uint8 = 18
	tVersion  uint8 = 19
	tExitErr  uint8 = 20
	tBootID   uint8 = 21
	tExitDir  uint8 = 22
	tSetUser  uint8 = 23
	tUID      uint8 = 24
	tGID      uint8 = 25
	tGroup    uint8 = 26
	tOOMAdj   uint8 = 27
	tOOM      uint8 = 28
	tErrCode  uint8 = 29
	tErrno    uint8 = 30
	tFiles    uint8 = 31
	tTTY      uint8 = 32
	tLost     uint8 = 33
	tCreator  uint8 = 34
	tSpec     uint8 = 35 // opaque
	tIsolated uint8 = 36
)

const (
	maxRequest = 4 << 20
	maxReply   = 64 << 20
)

// enc builds one frame.
type enc struct{ b []byte }

func newFrame(kind uint8, id uint32) *enc {
	e := &enc{b: make([]byte, 9, 256)}
	e.b[4] = kind
	put32(e.b[5:], id)
	return e
}

func (e *enc) field(tag uint8, s string) *enc {
	e.b = append(e.b, tag, 0, 0, 0, 0)
	put32(e.b[len(e.b)-4:], uint32(len(s)))
	e.b = append(e.b, s...)
	return e
}

func (e *enc) str(tag uint8, s string) *enc {
	if s == "" {
		return e
	}
	return e.field(tag, s)
}

func (e *enc) num(tag uint8, v int64) *enc {
	if v == 0 {
		return e
	}
	return e.field(tag, strconv.FormatInt(v, 10))
}

func (e *enc) flag(tag uint8, v bool) *enc {
	if !v {
		return e
	}
	return e.field(tag, "1")
}

func (e *enc) done() []byte {
	put32(e.b, uint32(len(e.b)-4))
	return e.b
}

// each calls fn for every field of a frame's body. A damaged one ends the walk
// with false; what was seen until then must not be used.
func each(b []byte, fn func(tag uint8, v string, n int64)) bool {
	for len(b) > 0 {
		if len(b) < 5 || uint64(get32(b[1:]))+5 > uint64(len(b)) {
			return false
		}
		l := int(get32(b[1:]))
		v := string(b[5 : 5+l])
		n, _ := strconv.ParseInt(v, 10, 64)
		fn(b[0], v, n)
		b = b[5+l:]
	}
	return true
}

func put32(b []byte, v uint32) {
	b[0], b[1], b[2], b[3] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
}

func get32(b []byte) uint32 {
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

// readFrame returns the next frame without its length. It is valid until the
// next call with the same buffer.
func readFrame(r io.Reader, buf *[]byte, limit int) ([]byte, error) {
	var h [4]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, err
	}
	n := int(get32(h[:]))
	if n < 5 || n > limit {
		return nil, errors.New("supervisor: bad frame length " + strconv.Itoa(n))
	}
	if cap(*buf) < n {
		*buf = make([]byte, n)
	}
	b := (*buf)[:n]
	_, err := io.ReadFull(r, b)
	return b, err
}
