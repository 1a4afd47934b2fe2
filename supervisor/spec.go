// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

// PoolConfig says where supervisors live and which program they are.
type PoolConfig struct {
	// Dir is the runtime directory, made 0700, best on tmpfs. It is widened to
	// 0711 when a FIFO in it belongs to another user; its parents are the host's.
	Dir string
	// Exe is the program to run as supervisor. "" is nodekeep-supervisor beside
	// this program's own file if there is one, else this program, started again.
	Exe string
	// Env is added to the supervisors' environment, which is otherwise empty.
	// Nothing of it reaches a task.
	Env []string
	// Wide is for scopes that hold many tasks: the supervisor collects garbage
	// and uses two processors.
	Wide bool
	// Warn is told, from any goroutine, what an operator should know: a
	// supervisor died, could not be started, left a message. nil is nobody. It
	// must not block and must not call the pool.
	Warn func(msg string)
}

// Spec is one task to start. ID makes Start idempotent; ID and Path, or Container, are
// required. What it says is all the task gets: three descriptors, this
// environment, a session of its own.
type Spec struct {
	ID   string   // unique in the scope for ever, such as "<alloc>/<task>/<attempt>"
	Path string   // of the program; no search is made
	Args []string // complete, from argv[0] on; empty is Path alone
	Env  []string // complete, "K=V"
	Dir  string   // working directory; "" is /

	// Stdout and Stderr name what the task writes to. A FIFO made by Logs is
	// drained before Wait answers; any other FIFO is opened for reading too, so
	// that no write fails; a file is appended to. "" is /dev/null, as is stdin.
	Stdout, Stderr string

	// Cgroup is the directory of the task's own cgroup, made if it is not there
	// and emptied if it is not empty. Destroy removes it. "" is none: then all
	// that descends from the task is found by a mark it inherits.
	Cgroup string
	// ExitDir is a directory on disk, "" for none. An exit that happens while no
	// agent is connected is also written there, for Adopt after a reboot.
	ExitDir string

	// Container has the task made by a creator, which decides about all that the
	// fields above and below do not: of those ID, Stdout, Stderr, Cgroup, ExitDir and
	// OOMScoreAdj count. Cgroup is then the task's in every hierarchy.
	Container *Container

	SetUser     bool // run as UID, GID and Groups, not as the supervisor does
	UID, GID    int
	Groups      []int
	OOMScoreAdj int // of the task; never the supervisor's own
}

// ExecSpec is a command to run beside a task (Scope.Exec).
type ExecSpec struct {
	Task string   // its ID; it must run
	Path string   // of the program; without a slash it is looked for in the PATH of the environment
	Args []string // complete, from argv[0] on; empty is Path alone
	Env  []string // added to the task's, wins over it
	TTY  bool     // Files[0] is a terminal: it becomes the command's controlling one
	// Container has a creator run the command in the task's container. Path, Args, Env
	// and TTY do not count then.
	Container *Container
	// Files are the command's stdin, stdout and stderr. They stay the caller's, who
	// closes them.
	Files [3]int
}

// Container is what to have made and by whom (package internal/creator).
type Container struct {
	Creator string // program; started by the supervisor as a creator
	Spec    []byte // for it, of the driver's making
}

// Identity names a process beyond doubt: a pid alone never does.
type Identity struct {
	ID     string // of the task
	PID    int
	Start  uint64 // clock ticks since boot, from /proc/<pid>/stat
	BootID string

	Cgroup, Stdout, Stderr, ExitDir string // as in the Spec
	Isolated                        bool   // a creator made it: Spec.Container was set
}

// Status is what a supervisor knows about a task.
type Status struct {
	ID     string
	PID    int
	Start  uint64 // clock ticks since boot; with PID and BootID names the process
	BootID string

	Exited    bool
	Code      int    // the process's own; 128+n after signal n; -1 when nobody saw the exit
	Signal    int    // that ended it, or 0
	OOMKilled bool   // the kernel's counter says so
	Err       string // why Code is -1
	Adopted   bool   // not this supervisor's child: an earlier one of the scope started it
	// OutputLost says that its last output may be lost: it ended while neither a
	// supervisor nor an agent held its FIFOs.
	OutputLost bool
}

// LogSpec asks for the FIFO pair of one task and the files behind it:
// Dir/<Task>.stdout.<n> and Dir/<Task>.stderr.<n>, made at the first byte.
type LogSpec struct {
	ID       string // unique in the scope, such as "<alloc>/<task>"; "" is Task
	Task     string // name of the files
	Dir      string // an existing directory
	MaxSize  int64  // bytes a file; default 10 MiB
	MaxFiles int    // default 10
	UID, GID int    // owner of the FIFOs; 0 is the supervisor's user
}
