// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodekeep/nodekeep/state"
)

// The agent's own part of the tree; the package doc draws it.
var (
	agentPath  = state.Path{"v1", "agent"}
	gonePath   = agentPath.Join("gone")
	eventPath  = state.Path{"v1", "events"}
	outboxPath = state.Path{"v1", "outbox"}
	allocsPath = state.Path{"v1", "alloc"}
	quarantine = state.Path{"v1", "quarantine"}

	identitySlot = state.Slot[identity]{Key: "identity", Version: 1}
	progressSlot = state.Slot[progress]{Key: "progress", Version: 1}
	placeSlot    = state.Slot[place]{Key: "place", Version: 1}
	goneSlot     = state.Slot[tombstone]{Key: "last", Version: 1}
	faultSlot    = state.Slot[fault]{Key: "fault", Version: 1}
)

// identity is what names this agent's things on the host.
type identity struct {
	ID         string `json:"id"` // of the agent: its cgroups are below it
	NodeID     string `json:"node_id"`
	RuntimeDir string `json:"runtime_dir"`
}

// place is what the agent must know of an alloc besides what its runner keeps.
type place struct {
	Scope ScopeMode `json:"scope"`
	Epoch string    `json:"epoch,omitempty"`

	// What the alloc takes the place of, as it was when it came: see lineage.
	Settled bool     `json:"settled,omitempty"` // the two are known
	After   []string `json:"after,omitempty"`
	Disk    bool     `json:"disk,omitempty"`
}

// fault is why an alloc's record was set aside.
type fault struct {
	Reason string `json:"reason"`
}

func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// runtimeDir is the default place of sockets, FIFOs and journals.
func runtimeDir(dataDir string) string {
	sum := sha256.Sum256([]byte(dataDir))
	name := hex.EncodeToString(sum[:8])
	if os.Geteuid() == 0 {
		return filepath.Join("/run/nodekeep", name)
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "nodekeep", name)
	}
	return filepath.Join(dataDir, "run")
}

// identify loads this agent's identity or makes one. A runtime directory that
// still holds supervisors stays in use, whatever the configuration says now.
func (a *Agent) identify() error {
	var id identity
	var had bool
	err := a.store.View(func(tx state.Tx) (err error) {
		id, had, err = identitySlot.Load(tx, agentPath)
		return err
	})
	if err != nil {
		return fmt.Errorf("nodekeep: the agent's identity cannot be read: %w", err)
	}
	old := id
	want := a.cfg.RuntimeDir
	if want == "" {
		want = runtimeDir(a.cfg.DataDir)
	}
	switch {
	case !had:
		if id, err = a.rememberedIdentity(); err != nil {
			return err
		}
		id.RuntimeDir = want
	case id.RuntimeDir != want && !holdsScopes(id.RuntimeDir):
		id.RuntimeDir = want
	case id.RuntimeDir != want:
		a.log.Warn("tasks still run under the earlier runtime directory: it stays in use",
			"runtime_dir", id.RuntimeDir, "configured", want)
	}
	if a.cfg.Node.ID == "" {
		a.cfg.Node.ID = id.NodeID
	}
	a.id = id
	err = a.rememberIdentity()
	if err != nil && had { // a full disk must not keep the agent from its tasks
		a.log.Warn("the agent goes on, but would be another one if its state were lost", "error", err)
		err = nil
	}
	if err != nil || id == old {
		return err
	}
	return a.store.Update(func(tx state.Tx) error { return identitySlot.Save(tx, agentPath, id) })
}

// identityFile keeps the identity beside the state, so that an agent whose state
// was lost still knows what on this machine is its own.
func (a *Agent) identityFile() string { return filepath.Join(a.cfg.DataDir, "identity.json") }

// rememberedIdentity is the one of before, or a new one if there was none or it
// cannot be read.
func (a *Agent) rememberedIdentity() (id identity, err error) {
	raw, err := os.ReadFile(a.identityFile())
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return id, fmt.Errorf("nodekeep: %w", err)
	case json.Unmarshal(raw, &id) == nil && validID(id.ID) && validID(id.NodeID):
		return id, nil
	default:
		a.log.Warn("the file that keeps the agent's identity is damaged; it gets a new one", "file", a.identityFile())
	}
	return identity{ID: newID(), NodeID: newID()}, nil
}

func (a *Agent) rememberIdentity() error {
	raw, err := json.Marshal(identity{ID: a.id.ID, NodeID: a.id.NodeID})
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(a.identityFile()); err == nil && bytes.Equal(old, raw) {
		return nil
	}
	part := a.identityFile() + ".new"
	if err = os.WriteFile(part, raw, 0o600); err == nil {
		err = os.Rename(part, a.identityFile())
	}
	if err != nil {
		_ = os.Remove(part)
		return fmt.Errorf("nodekeep: the agent's identity cannot be written: %w", err)
	}
	return nil
}

// validID says whether id has the form that newID gives.
func validID(id string) bool {
	return len(id) == 36 && strings.Trim(id, "0123456789abcdef-") == ""
}

func holdsScopes(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() != runtimeLock })
}
