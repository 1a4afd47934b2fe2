// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/spec"
)

// jobStore is the control plane of a node that has none: what was applied, on
// disk, and handed to the agent as its desired state.
//
//	jobs/index              epoch and index, written before what they are for
//	jobs/<ns>.<job>.json    one job: its allocs, and of each place the one before
//
// Every file is written beside and renamed, so a crash leaves the old or the new
// one. The index only grows; a lost store begins a new epoch, which the agent
// takes without stopping anything at once. A change is on disk before the agent
// hears of it, and the agent hears of all of it again at the next start.
type jobStore struct {
	dir   string
	agent agentOfStore
	log   hclog.Logger

	mu   sync.Mutex // held from a change until the agent has it: the order is one
	mark mark
	jobs map[string]*job // by file name
	late late
}

// agentOfStore is what the store needs of the agent.
type agentOfStore interface {
	Apply(ctx context.Context, d nodekeep.Desired) error
	Allocs() []nodekeep.AllocStatus
	Alloc(id string) (nodekeep.AllocStatus, bool)
	Drivers() []nodekeep.DriverStatus
}

// mark is the content of jobs/index.
type mark struct {
	Epoch string `json:"epoch"`
	Index uint64 `json:"index"`
}

// job is the content of a job's file.
type job struct {
	Format    int           `json:"format"`
	Namespace string        `json:"namespace"`
	ID        string        `json:"id"`
	Version   uint64        `json:"version"` // of the job; new allocs take their ids from it
	Allocs    []*spec.Alloc `json:"allocs"`
}

const jobFormat = 1

// openStore reads the store in dir, or begins one. The agent must have restored:
// a job whose file cannot be read is rebuilt from the allocs that it knows, so
// that nothing is stopped by a damaged file.
func openStore(dir string, agent agentOfStore, log hclog.Logger) (*jobStore, error) {
	s := &jobStore{dir: dir, agent: agent, log: log, jobs: map[string]*job{}, late: late{files: map[string]any{}, wake: make(chan struct{}, 1)}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, unwritten(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("job store: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		switch {
		case strings.HasSuffix(name, ".tmp"):
			_ = os.Remove(filepath.Join(dir, name)) // of a write that a crash ended
		case strings.HasSuffix(name, ".json"):
			if err := s.load(name); err != nil {
				return nil, err
			}
		}
	}
	return s, s.loadMark()
}

// loadMark reads the index; a lost or damaged one begins a new epoch. It is
// written only if it is another one.
func (s *jobStore) loadMark() error {
	data, err := os.ReadFile(filepath.Join(s.dir, "index"))
	if err == nil && (json.Unmarshal(data, &s.mark) != nil || s.mark.Epoch == "") {
		err = errors.New("not what was written")
		if qerr := s.quarantine("index", err); qerr != nil {
			return qerr
		}
		s.mark = mark{}
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("job store: %w", err)
	}
	read := s.mark
	for _, j := range s.jobs {
		for _, al := range j.Allocs {
			s.mark.Index = max(s.mark.Index, al.ModifyIndex)
		}
	}
	if s.mark.Epoch == "" {
		s.mark.Epoch = rand.Text()
	}
	if s.mark != read {
		s.writeOrLater("index", s.mark)
	}
	return nil
}

// load reads one job's file.
func (s *jobStore) load(name string) error {
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		return fmt.Errorf("job store: %w", err)
	}
	j, err := decodeJob(data)
	if err == nil && fileName(j.Namespace, j.ID) != name {
		err = fmt.Errorf("it holds the job %q of namespace %q", j.ID, j.Namespace)
	}
	if err == nil {
		s.jobs[name] = j
		return nil
	}
	if j != nil && j.Format > jobFormat {
		return fmt.Errorf("job store: %s was written by a newer nodekeep: use that one", filepath.Join(s.dir, name))
	}
	if err := s.quarantine(name, err); err != nil {
		return err
	}
	return s.rebuild(name)
}

func decodeJob(data []byte) (*job, error) {
	var j job
	if err := json.Unmarshal(data, &j); err != nil {
		return nil, err
	}
	if j.Format != jobFormat {
		return &j, fmt.Errorf("unknown format %d", j.Format)
	}
	for _, al := range j.Allocs {
		if al == nil {
			return nil, errors.New("an alloc is null")
		}
		if err := al.Validate(); err != nil {
			return nil, err
		}
	}
	return &j, nil
}

// quarantine moves a file that cannot be read out of the way and says so.
func (s *jobStore) quarantine(name string, why error) error {
	aside := fmt.Sprintf("%s.corrupt-%d", filepath.Join(s.dir, name), time.Now().Unix())
	if err := os.Rename(filepath.Join(s.dir, name), aside); err != nil {
		return fmt.Errorf("job store: %s cannot be read (%w) nor moved away: %w", name, why, err)
	}
	s.log.Error("a file of the job store is damaged and was moved away; its running allocs go on, apply the job again to change it",
		"file", filepath.Join(s.dir, name), "moved_to", aside, "reason", why)
	return nil
}

// rebuild makes the job of a lost file from what the agent runs of it.
func (s *jobStore) rebuild(name string) error {
	j := &job{Format: jobFormat}
	for _, st := range s.agent.Allocs() {
		al := st.Alloc
		if al == nil || st.Gone || fileName(al.Namespace, al.JobID) != name {
			continue
		}
		j.Namespace, j.ID = al.Namespace, al.JobID
		j.Version = max(j.Version, al.CreateIndex)
		j.Allocs = append(j.Allocs, al.Clone())
	}
	if len(j.Allocs) == 0 {
		return nil
	}
	s.jobs[name] = j
	s.writeOrLater(name, j)
	return nil
}

// desired is the whole desired state, for the first contact.
func (s *jobStore) desired() nodekeep.Desired {
	d := nodekeep.Desired{Epoch: s.mark.Epoch, Index: s.mark.Index, Full: true}
	names := make([]string, 0, len(s.jobs))
	for name := range s.jobs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		d.Allocs = append(d.Allocs, s.jobs[name].Allocs...)
	}
	return d
}

// Feed hands the desired state to the agent: once at the start. Allocs that it
// refuses are its to report; an index that it has passed (the store came out of
// a backup) begins a new epoch.
func (s *jobStore) Feed(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.feed(ctx)
	if errors.Is(err, nodekeep.ErrStale) {
		s.log.Warn("the job store is older than what the agent knows: beginning a new epoch", "reason", err)
		s.mark.Epoch = rand.Text()
		s.writeOrLater("index", s.mark)
		err = s.feed(ctx)
	}
	if ctx.Err() == nil && err != nil {
		s.log.Error("not all that is wanted can run", "error", err)
		return nil
	}
	return err
}

// commit writes changed jobs under a new index and hands the result to the
// agent. change gets the index and returns the jobs as they shall be, nil for
// those to forget.
func (s *jobStore) commit(ctx context.Context, change func(index uint64) (map[string]*job, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := mark{s.mark.Epoch, s.mark.Index + 1}
	jobs, err := change(next.Index)
	if err != nil {
		return err
	}
	jobs = s.prune(jobs, func(al *spec.Alloc) bool { return al.Stopped() })
	if len(jobs) == 0 {
		return nil
	}
	if err := s.writeLate(); err != nil {
		return err
	}
	if err := s.write("index", next); err != nil {
		return err
	}
	s.mark = next
	// What can fail for want of space is done for all before the first counts.
	for name, j := range jobs {
		if j == nil {
			continue
		}
		if err := s.prepare(name, j); err != nil {
			for name := range jobs {
				_ = os.Remove(filepath.Join(s.dir, name) + ".tmp")
			}
			return err
		}
	}
	for name, j := range jobs {
		if j == nil {
			delete(s.jobs, name)
			if err := os.Remove(filepath.Join(s.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return unwritten(err)
			}
			continue
		}
		if err := os.Rename(filepath.Join(s.dir, name)+".tmp", filepath.Join(s.dir, name)); err != nil {
			return unwritten(err)
		}
		s.jobs[name] = j
	}
	if err := syncDir(s.dir); err != nil {
		return unwritten(err)
	}
	err = s.feed(ctx)
	if s.late.feed {
		return &api.Error{Code: api.CodeNotDurable, Message: fmt.Sprintf("it is in the job store, but the node cannot carry it out now: %s", api.Plain(err)),
			Hint: diskAdvice(err) + "; it is tried again until it works"}
	}
	return err
}

// Apply makes jobs the desired state. See plan for what becomes of their allocs.
func (s *jobStore) Apply(ctx context.Context, jobs []api.Job) (all []api.Applied, err error) {
	err = s.commit(ctx, func(index uint64) (map[string]*job, error) {
		changed := map[string]*job{}
		var faults []error
		for _, want := range jobs {
			want = withDefaults(want)
			name := fileName(want.Namespace, want.ID)
			if changed[name] != nil {
				faults = append(faults, fmt.Errorf("job %q is there twice", want.ID))
			}
			faults = append(faults, s.check(want))
			old := s.jobs[name]
			if old == nil {
				old = &job{Format: jobFormat, Namespace: want.Namespace, ID: want.ID}
			}
			j, mine := s.plan(old, want, index)
			changed[name], all = j, append(all, mine...)
		}
		if err := errors.Join(faults...); err != nil {
			return nil, &api.Error{Code: api.CodeInvalid, Message: api.Plain(err)}
		}
		return changed, nil
	})
	return all, err
}

// withDefaults fills in what the job's sender left out.
func withDefaults(j api.Job) api.Job {
	if j.Namespace == "" {
		j.Namespace = spec.DefaultNamespace
	}
	allocs := make([]*spec.Alloc, len(j.Allocs))
	for i, al := range j.Allocs {
		allocs[i] = al.WithDefaults()
	}
	j.Allocs = allocs
	return j
}

// check tells all faults of a job.
func (s *jobStore) check(want api.Job) error {
	var faults []error
	places := map[string]bool{}
	drivers := map[string]nodekeep.DriverStatus{}
	for _, d := range s.agent.Drivers() {
		drivers[d.Name] = d
	}
	for _, al := range want.Allocs {
		if al.JobID != want.ID || al.Namespace != want.Namespace {
			faults = append(faults, fmt.Errorf("job %q has an alloc of job %q", want.ID, al.JobID))
		}
		if places[place(al)] {
			faults = append(faults, fmt.Errorf("job %q has %s[%d] twice", want.ID, al.Group, al.Index))
		}
		places[place(al)] = true
		if err := al.Validate(); err != nil {
			faults = append(faults, fmt.Errorf("job %q, group %q: %w", want.ID, al.Group, err))
		}
		for i := range al.Tasks {
			if err := checkDriver(drivers, al.Tasks[i].Driver); err != nil {
				faults = append(faults, fmt.Errorf("job %q, group %q, task %q: %w", want.ID, al.Group, al.Tasks[i].Name, err))
			}
		}
	}
	return errors.Join(faults...)
}

// checkDriver says whether this node can run tasks of a driver.
func checkDriver(drivers map[string]nodekeep.DriverStatus, name string) error {
	d, ok := drivers[name]
	switch {
	case !ok:
		return fmt.Errorf("%w %q: this node has %s", nodekeep.ErrUnknownDriver, name, strings.Join(slices.Sorted(maps.Keys(drivers)), ", "))
	case !d.Detected:
		return fmt.Errorf("driver %s does not work here: %s", name, api.Plain(errors.New(d.Description)))
	}
	return nil
}

// spent says whether the agent will not run this alloc again although it may be
// wanted: it has failed, or its stop was carried out but not written here, or it
// is over and no batch, which shall run once.
func (s *jobStore) spent(al *spec.Alloc) bool {
	st, ok := s.agent.Alloc(al.ID)
	switch {
	case !ok:
		return false
	case st.Status == allocrunner.Failed, st.Ending == allocrunner.CauseKilled, st.Ending == allocrunner.CauseStopped:
		return true
	case al.JobType.Batch():
		return false
	}
	return st.Gone || st.Done || st.Status == allocrunner.Complete
}

// gone says whether the agent has collected this alloc.
func (s *jobStore) gone(id string) bool {
	st, ok := s.agent.Alloc(id)
	return ok && st.Gone
}

// stopped is al as it is when it shall not run any more.
func stopped(al *spec.Alloc, reason string, index uint64) *spec.Alloc {
	al = al.Clone()
	al.DesiredStatus, al.DesiredReason, al.ModifyIndex = spec.DesiredStop, reason, index
	return al
}

// Stop makes an alloc's desired status stop. One that is stopped already is none
// the worse.
func (s *jobStore) Stop(ctx context.Context, id string) error {
	return s.commit(ctx, func(index uint64) (map[string]*job, error) {
		for name, j := range s.jobs {
			i := slices.IndexFunc(j.Allocs, func(al *spec.Alloc) bool { return al.ID == id })
			if i < 0 {
				continue
			}
			if j.Allocs[i].Stopped() {
				return nil, nil
			}
			c := *j
			c.Allocs = slices.Clone(j.Allocs)
			c.Allocs[i] = stopped(c.Allocs[i], "stopped by hand", index)
			return map[string]*job{name: &c}, nil
		}
		return nil, fmt.Errorf("%w: %s belongs to no job that was applied here", nodekeep.ErrNoAlloc, id)
	})
}

// Forget drops every alloc that the agent has collected, whatever is desired of
// it: applied again, its job runs again.
func (s *jobStore) Forget(ctx context.Context) error {
	return s.commit(ctx, func(uint64) (map[string]*job, error) {
		return s.prune(nil, func(*spec.Alloc) bool { return true }), nil
	})
}

// prune adds to changed the jobs that have collected allocs for which drop
// holds, without them, and without a job of which nothing is left. So the store
// does not grow with what was stopped long ago.
func (s *jobStore) prune(changed map[string]*job, drop func(*spec.Alloc) bool) map[string]*job {
	for name, old := range s.jobs {
		if _, ok := changed[name]; ok {
			continue
		}
		j := *old
		j.Allocs = slices.DeleteFunc(slices.Clone(old.Allocs), func(al *spec.Alloc) bool {
			st, ok := s.agent.Alloc(al.ID)
			return drop(al) && (!ok || st.Gone)
		})
		if len(j.Allocs) == len(old.Allocs) {
			continue
		}
		if changed == nil {
			changed = map[string]*job{}
		}
		if changed[name] = &j; len(j.Allocs) == 0 {
			changed[name] = nil
		}
	}
	return changed
}

// Clear forgets every job: the agent stops what runs and collects all.
func (s *jobStore) Clear(ctx context.Context) error {
	return s.commit(ctx, func(uint64) (map[string]*job, error) {
		all := map[string]*job{}
		for name := range s.jobs {
			all[name] = nil
		}
		return all, nil
	})
}
