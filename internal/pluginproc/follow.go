// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package pluginproc

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/fsnotify/fsnotify"
	"github.com/hashicorp/go-hclog"
)

const (
	stderrName = "stderr"
	posName    = "stderr.pos"
	// cutAt is how much of what was read is kept on disk.
	cutAt = 1 << 20
	// maxBehind is how much a plugin may be ahead of us: what it wrote before is
	// dropped. A flood must fill neither the disk nor the log.
	maxBehind = 8 << 20
)

// follower hands a plugin's lines to the agent's logger. The plugin appends, we
// read behind it and free what was read: no line is lost with an agent, and none
// comes twice but for those of the instant in which one died.
type follower struct {
	file, pos *os.File
	watch     *fsnotify.Watcher
	at        int64 // read so far, whole lines
	out       lines
	stop      chan bool
	done      chan struct{}
	once      sync.Once
}

func follow(dir string, log hclog.Logger) (_ *follower, err error) {
	f := &follower{out: lines{log: log}, stop: make(chan bool, 1), done: make(chan struct{})}
	defer func() {
		if err != nil {
			f.free()
		}
	}()
	name := filepath.Join(dir, stderrName)
	if f.file, err = os.OpenFile(name, os.O_RDWR, 0); err != nil {
		return nil, err
	}
	if f.pos, err = os.OpenFile(filepath.Join(dir, posName), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	var at [8]byte
	if n, _ := f.pos.ReadAt(at[:], 0); n == len(at) {
		f.at = max(0, int64(binary.BigEndian.Uint64(at[:])))
	}
	if f.watch, err = fsnotify.NewWatcher(); err != nil {
		return nil, err
	}
	if err = f.watch.Add(name); err != nil {
		return nil, err
	}
	go f.run()
	return f, nil
}

func (f *follower) free() {
	if f.file != nil {
		_ = f.file.Close()
	}
	if f.pos != nil {
		_ = f.pos.Close()
	}
	if f.watch != nil {
		_ = f.watch.Close()
	}
}

// close ends the follower, after what is there was read if all is wanted.
func (f *follower) close(all bool) {
	if f == nil {
		return
	}
	f.once.Do(func() { f.stop <- all })
	<-f.done
}

func (f *follower) run() {
	defer close(f.done)
	defer f.free()
	for {
		f.drain()
		select {
		case _, ok := <-f.watch.Events:
			if !ok {
				return
			}
		case err := <-f.watch.Errors:
			f.out.log.Warn("watching the plugin's log", "error", err)
		case all := <-f.stop:
			if all {
				f.drain()
				f.out.end()
			}
			return
		}
	}
}

// drain reads to the end of the file, remembers where that is, and frees what is
// before it. What has no line end yet stays, unless it is too long.
func (f *follower) drain() {
	st, err := f.file.Stat()
	if err != nil {
		f.out.log.Warn("reading the plugin's log", "error", err)
		return
	}
	if st.Size() < f.at {
		f.at = 0
	}
	if behind := st.Size() - f.at; behind > maxBehind {
		f.out.log.Warn("the plugin logs faster than anyone reads; the oldest is dropped", "bytes", behind-cutAt)
		f.at = st.Size() - cutAt
	}
	began := f.at
	in := bufio.NewReaderSize(io.NewSectionReader(f.file, f.at, st.Size()-f.at), maxLine)
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		f.at += int64(len(line))
		f.out.line(bytes.TrimRight(line, "\r\n"), err != nil)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			break
		}
	}
	if f.at == began {
		return
	}
	if _, err := f.pos.WriteAt(binary.BigEndian.AppendUint64(nil, uint64(f.at)), 0); err != nil {
		f.out.log.Warn("remembering how far the plugin's log was read", "error", err)
	}
	if f.at-f.out.cut > cutAt {
		free(f.file, f.at)
		f.out.cut = f.at
	}
}

// lines turns lines into entries of the agent's log.
type lines struct {
	log   hclog.Logger
	cut   int64 // where the file begins
	long  bool  // inside a line that is too long
	panic bool  // inside the trace of a crash
}

func (l *lines) end() { l.long, l.panic = false, false }

// line logs one line of stderr; part says that it is not all of it.
func (l *lines) line(b []byte, part bool) {
	if part || l.long {
		l.log.Debug(valid(b))
		l.long = part
		return
	}
	if len(b) == 0 || b[0] != '{' || !l.structured(b) {
		l.plain(valid(b))
	}
}

// plain logs a line without structure: what a crash says is an error.
func (l *lines) plain(s string) {
	switch {
	case s == "" && !l.panic:
	case strings.HasPrefix(s, "[TRACE]"):
		l.log.Trace(s)
	case strings.HasPrefix(s, "[DEBUG]"):
		l.log.Debug(s)
	case strings.HasPrefix(s, "[INFO]"):
		l.log.Info(s)
	case strings.HasPrefix(s, "[WARN]"):
		l.log.Warn(s)
	case strings.HasPrefix(s, "[ERROR]"):
		l.log.Error(s)
	case l.panic, strings.HasPrefix(s, "panic: "), strings.HasPrefix(s, "fatal error: "):
		l.panic = true
		l.log.Error(s)
	default:
		l.log.Debug(s)
	}
}

// structured logs a line of hclog's JSON at its own level.
func (l *lines) structured(b []byte) bool {
	var m map[string]any
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if dec.Decode(&m) != nil {
		return false
	}
	text, _ := m["@level"].(string)
	level := hclog.LevelFromString(text)
	if level == hclog.NoLevel || level == hclog.Off {
		return false
	}
	msg, _ := m["@message"].(string)
	var args []any
	for _, k := range slices.Sorted(maps.Keys(m)) {
		switch k {
		case "@level", "@message", "@caller":
		case "@timestamp":
			args = append(args, "timestamp", m[k])
		default:
			args = append(args, valid([]byte(k)), flat(m[k]))
		}
	}
	l.log.Log(level, valid([]byte(msg)), args...)
	return true
}

// flat is a value as a log prints it.
func flat(v any) any {
	switch v := v.(type) {
	case string:
		return valid([]byte(v))
	case json.Number, bool, nil:
		return fmt.Sprint(v)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

func valid(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }
