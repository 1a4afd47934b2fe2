// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/nodekeep/nodekeep/state"
)

// The agent's own part of the tree; the package doc draws it.
var (
	agentPath  = state.Path{"v1", "agent"}
	gonePath   = agentPath.Join("gone")
	eventPath  = state.Path{"v1", "events"}
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
		id = identity{ID: newID(), NodeID: newID(), RuntimeDir: want}
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
	if id == old {
		return nil
	}
	return a.store.Update(func(tx state.Tx) error { return identitySlot.Save(tx, agentPath, id) })
}

func holdsScopes(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() != runtimeLock })
}
