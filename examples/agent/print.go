// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"unicode/utf8"

	"github.com/nodekeep/nodekeep/api"
)

// printer writes what the tasks of run say, line by line, each with the name of
// its task; in colour on a terminal, unless NO_COLOR is set.
type printer struct {
	json   bool
	color  bool
	width  int
	labels map[string]string // by job, group, index and task
	hue    map[string]int    // by label

	mu  sync.Mutex
	out io.Writer
}

// newPrinter knows every label beforehand, so that all lines are aligned.
func newPrinter(a *app, jobs []api.Job) *printer {
	p := &printer{json: a.json, color: a.colors(), out: a.stdout, labels: map[string]string{}, hue: map[string]int{}}
	allocs := 0
	for _, j := range jobs {
		allocs += len(j.Allocs)
	}
	for _, j := range jobs {
		for _, al := range j.Allocs {
			for i := range al.Tasks {
				name := al.Tasks[i].Name
				label := name
				if allocs > 1 {
					label = place(al) + "." + name
				}
				if len(jobs) > 1 {
					label = al.JobID + "." + label
				}
				label = clean(label)
				p.labels[labelKey(al.JobID, place(al), name)] = label
				if _, ok := p.hue[label]; !ok {
					p.hue[label] = len(p.hue)
				}
				p.width = max(p.width, utf8.RuneCountInString(label))
			}
		}
	}
	return p
}

func labelKey(job, place, task string) string { return job + "\x00" + place + "\x00" + task }

// colors says whether stdout shows colours.
func (a *app) colors() bool {
	if a.env("NO_COLOR") != "" || a.env("TERM") == "dumb" {
		return false
	}
	return isTerminal(a.stdout)
}

// isTerminal says whether an output is a terminal.
func isTerminal(w io.Writer) bool {
	if in, ok := w.(*watched); ok {
		w = in.Writer
	}
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// palette holds colours that are readable on light and on dark.
var palette = []string{"36", "33", "35", "32", "34", "31"}

func (p *printer) paint(code, text string) string {
	if !p.color || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// line prints one line of a task: bar is between the name and the text.
func (p *printer) line(label, bar, text string) {
	pad := fmt.Sprintf("%*s", p.width-utf8.RuneCountInString(label), "")
	head := p.paint(palette[p.hue[label]%len(palette)], label) + pad + " " + bar + " "
	p.write(head + text + "\n")
}

func (p *printer) write(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = io.WriteString(p.out, s) // a reader that has gone is noticed by the output itself
}

func (p *printer) printJSON(v any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = encode(p.out, v, "") // as in write
}

// say prints a word of our own.
func (p *printer) say(format string, args ...any) {
	if !p.json {
		p.write(p.paint("2", clean(oneLine(fmt.Sprintf(format, args...)))) + "\n")
	}
}

func (p *printer) verdict(good bool, format string, args ...any) {
	code := "1;31"
	if good {
		code = "1;32"
	}
	if !p.json {
		p.write(p.paint(code, clean(oneLine(fmt.Sprintf(format, args...)))) + "\n")
	}
}

// follower prints events and output of one job's allocs.
type follower struct {
	*printer
	c      *api.Client
	allocs map[string]map[string]string // label by alloc id and task
	logs   sync.WaitGroup
	events sync.WaitGroup
	cut    context.CancelFunc // of the events
	after  uint64             // token of the last event printed; events' own until they ended
}

// outputLine is a line of output in JSON.
type outputLine struct {
	Alloc  string `json:"alloc"`
	Task   string `json:"task"`
	Stream string `json:"stream"`
	Line   string `json:"line"`
}

// newFollower pairs the job's allocs with the ids the node gave them.
func newFollower(p *printer, c *api.Client, job api.Job, ids []string) *follower {
	f := &follower{printer: p, c: c, allocs: map[string]map[string]string{}}
	for i, al := range job.Allocs {
		labels := map[string]string{}
		for j := range al.Tasks {
			name := al.Tasks[j].Name
			labels[name] = p.labels[labelKey(al.JobID, place(al), name)]
		}
		f.allocs[ids[i]] = labels
	}
	return f
}

// start follows every stream and the events after the token, until ctx ends or
// finish is called.
func (f *follower) start(ctx context.Context, after uint64) {
	for id, labels := range f.allocs {
		for task, label := range labels {
			for _, stderr := range []bool{false, true} {
				f.logs.Go(func() { f.followLog(ctx, id, task, label, stderr) })
			}
		}
	}
	f.after = after
	ctx, f.cut = context.WithCancel(ctx)
	f.events.Go(func() { f.printEvents(ctx, true) })
}

// finish prints what is left once every alloc has finished.
func (f *follower) finish(ctx context.Context) {
	f.logs.Wait() // they end with their allocs
	f.cut()
	f.events.Wait()
	f.printEvents(ctx, false)
}

// wait waits for the end of what the end of start's context ended.
func (f *follower) wait() {
	f.logs.Wait()
	f.cut()
	f.events.Wait()
}

func (f *follower) printEvents(ctx context.Context, follow bool) {
	for e, err := range f.c.Events(ctx, f.after, "", follow) {
		if err != nil {
			if ctx.Err() == nil {
				f.say("events: %s", api.Plain(err))
			}
			return
		}
		f.after = e.Token
		labels, ok := f.allocs[e.Alloc]
		switch {
		case !ok:
		case f.json:
			f.printJSON(e)
		default:
			label := labels[e.Task]
			text := e.Kind
			if e.Message != "" {
				text += ": " + e.Message
			}
			f.line(label, f.paint("2", "·"), f.paint("2", clean(oneLine(text))))
		}
	}
}

func (f *follower) followLog(ctx context.Context, id, task, label string, stderr bool) {
	stream, bar := "stdout", "│"
	if stderr {
		stream, bar = "stderr", f.paint("31", "│")
	}
	r, err := f.c.Logs(ctx, id, api.LogQuery{Task: task, Stderr: stderr, Follow: true, Lost: func(files, bytes int64) {
		if f.json {
			f.printJSON(lostOutput{id, task, stream, files, bytes})
		} else {
			f.line(label, f.paint("2", "·"), f.paint("2", lostText(files, bytes)))
		}
	}})
	if err != nil {
		var e *api.Error
		if ctx.Err() == nil && !(errors.As(err, &e) && e.Code == api.CodeConflict) { // the job has turned logs off
			f.say("logs of %s: %s", label, api.Plain(err))
		}
		return
	}
	defer r.Close()
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := in.ReadSlice('\n')
		if len(line) > 0 {
			text := string(line)
			if text[len(text)-1] == '\n' {
				text = text[:len(text)-1]
			}
			if f.json {
				f.printJSON(outputLine{Alloc: id, Task: task, Stream: stream, Line: text})
			} else {
				f.line(label, bar, text)
			}
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) { // of a longer line the rest comes as the next
			if !errors.Is(err, io.EOF) && ctx.Err() == nil {
				f.say("logs of %s: %s", label, api.Plain(err))
			}
			return
		}
	}
}

// count is "1 alloc", "2 allocs".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
