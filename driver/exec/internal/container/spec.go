// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// SpecVersion is the form of Spec and Exec that this build writes. A creator is of
// the same build as the supervisor that forks it, which may be older than the
// agent: it refuses what is newer than itself.
const SpecVersion = 1

// Spec is a container: all a creator needs to make one. It is plain data, made by
// Build in the agent and sent as JSON; paths on the left are the host's.
type Spec struct {
	Version   int    `json:"version"`
	ID        string `json:"id"`         // name of the state directory: creator.Name of the task's ID
	StateRoot string `json:"state_root"` // parent of the state directory
	Cgroup    string `json:"cgroup"`     // below the mount point of every hierarchy; "" is none
	Rootless  bool   `json:"rootless,omitempty"`

	Root     Root     `json:"root"`
	Mounts   []Mount  `json:"mounts,omitempty"` // in order, above what Root makes
	Devices  []Device `json:"devices,omitempty"`
	Net      string   `json:"net,omitempty"` // path of the namespace to join; "" is the host's, "new" an empty one
	HostPID  bool     `json:"host_pid,omitempty"`
	HostIPC  bool     `json:"host_ipc,omitempty"`
	IDs      []IDs    `json:"ids,omitempty"` // of a user namespace; none is the host's
	Hostname string   `json:"hostname"`
	ShmMB    int64    `json:"shm_mb"` // of /dev/shm
	Process  Process  `json:"process"`
	Limits   Limits   `json:"limits"`
}

// Root is what the file system of a container is made of.
type Root struct {
	// Dir is a directory that exists. The root is assembled on it in the creator's
	// own mount namespace, so that nothing of it is seen on the host; without the
	// right to mount it is built in place.
	Dir string `json:"dir"`
	// Image is a directory with an unpacked root file system below Base, which no link
	// leads out of; "" is a root made of Entries.
	Image    string   `json:"image,omitempty"`
	Base     string   `json:"base,omitempty"`
	Writable bool     `json:"writable,omitempty"` // what is written stays in memory, up to SizeMB
	SizeMB   int64    `json:"size_mb,omitempty"`
	Entries  []Entry  `json:"entries,omitempty"` // directories and files of the host, read-only
	Files    []File   `json:"files,omitempty"`   // generated, win over Entries
	Dirs     []string `json:"dirs,omitempty"`    // places to mount on
}

// Entry makes a path of the host visible: a directory as a read-only bind, a small
// file that everybody may read as a copy, a link as it is. What is not there is
// left out.
type Entry struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// File is a file that exists in the container alone.
type File struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// Mount is a directory or file of the host in the container, or a tmpfs.
type Mount struct {
	Source      string `json:"source,omitempty"` // "" is a tmpfs
	Target      string `json:"target"`
	ReadOnly    bool   `json:"read_only,omitempty"`
	NoExec      bool   `json:"no_exec,omitempty"`
	Propagation string `json:"propagation,omitempty"` // private (default), host-to-task, bidirectional
	SizeMB      int64  `json:"size_mb,omitempty"`     // of a tmpfs
	Mode        uint32 `json:"mode,omitempty"`        // of a tmpfs
}

// Device is a device node of the host, with what may be done with it.
type Device struct {
	Source      string `json:"source"`
	Target      string `json:"target"`
	Permissions string `json:"permissions"` // of r, w, m
}

// IDs maps Size users and groups, from Inside in the container to Host on the host.
type IDs struct {
	Inside int64 `json:"inside"`
	Host   int64 `json:"host"`
	Size   int64 `json:"size"`
}

// Process is what runs in a container. It is the same for what is run beside it
// later, but for command and terminal.
type Process struct {
	Paths  []string `json:"paths"` // the first that exists is run
	Args   []string `json:"args"`  // argv, its first included
	Env    []string `json:"env"`
	Dir    string   `json:"dir"`
	UID    int      `json:"uid"`
	GID    int      `json:"gid"`
	Groups []int    `json:"groups,omitempty"`

	Bounding    []string `json:"bounding,omitempty"` // CAP_X
	Effective   []string `json:"effective,omitempty"`
	Ambient     []string `json:"ambient,omitempty"`
	NoNewPrivs  bool     `json:"no_new_privs"`
	Seccomp     bool     `json:"seccomp"`
	Init        bool     `json:"init,omitempty"` // a small init is PID 1
	OOMScoreAdj int      `json:"oom_score_adj"`
	// Rlimits are soft and hard limits by name, such as nofile.
	Rlimits map[string][2]uint64 `json:"rlimits,omitempty"`

	TTY  bool   `json:"tty,omitempty"`
	Rows uint16 `json:"rows,omitempty"`
	Cols uint16 `json:"cols,omitempty"`
}

// Limits are set before the first instruction of the task. Zero is no limit.
type Limits struct {
	CPUShares     uint64 `json:"cpu_shares,omitempty"` // v1, 2 to 262144
	CPUWeight     uint64 `json:"cpu_weight,omitempty"` // v2, 1 to 10000
	CPUQuota      int64  `json:"cpu_quota,omitempty"`  // microseconds of each CPUPeriod
	CPUPeriod     uint64 `json:"cpu_period,omitempty"`
	Cpus          string `json:"cpus,omitempty"`           // such as 0-3,7
	Memory        int64  `json:"memory,omitempty"`         // bytes that are never exceeded
	MemoryReserve int64  `json:"memory_reserve,omitempty"` // bytes that are kept when memory is short
	Swap          int64  `json:"swap,omitempty"`           // bytes beside Memory; -1 is no limit
	Pids          int64  `json:"pids,omitempty"`
}

// Exec is a command to run in a container that is there, with the user, limits,
// capabilities and filter of its process.
type Exec struct {
	Version   int      `json:"version"`
	ID        string   `json:"id"`
	StateRoot string   `json:"state_root"`
	Args      []string `json:"args"`          // the first without a slash is looked for in the PATH
	Env       []string `json:"env,omitempty"` // added to the process's, wins over it
	TTY       bool     `json:"tty,omitempty"`
	Rows      uint16   `json:"rows,omitempty"`
	Cols      uint16   `json:"cols,omitempty"`
}

// Encode is what a creator is sent.
func (s Spec) Encode() ([]byte, error) { return json.Marshal(s) }

// Encode is what a creator is sent.
func (e Exec) Encode() ([]byte, error) { return json.Marshal(e) }

// decode reads a Spec or Exec as strictly as it was written.
func decode(b []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("container: what to make cannot be read: %w", err)
	}
	return nil
}
