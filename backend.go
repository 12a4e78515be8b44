package belljar

import (
	"context"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// Backend isolates. It gets compiled, validated plans: no policy logic lives
// below this line. Implementations are safe for concurrent use and pass
// conformance.Run.
type Backend interface {
	// Name is the value of [Spec.Backend].
	Name() string
	// Probe says what the backend can do on this host, without attacking anything:
	// which layers are there. Capabilities are derived from it by the lab.
	Probe(ctx context.Context) (Probe, error)
	// Create makes a sandbox, or leaves nothing behind.
	Create(ctx context.Context, plan *Plan) (Instance, error)
	// Close ends what the backend keeps between sandboxes. It is idempotent.
	Close(ctx context.Context) error
}

// Probe is what a backend found on this host.
type Probe struct {
	Backend      string        `json:"backend"`
	Host         string        `json:"host"`   // kernel release and machine
	Layers       []LayerReport `json:"layers"` // Status applied = available here
	Capabilities []Capability  `json:"capabilities"`
}

// Plan is a sandbox spec after validation: every default filled in.
type Plan struct {
	// ID is the sandbox's id, from a CSPRNG: "sb-" and 20 characters of [a-z2-7].
	ID string
	// Spec has every default filled in. It must not be changed.
	Spec Spec
	// Wants has an entry for every layer: mode, overrides and written limits combined.
	Wants map[Layer]Want
	// PidsWritten says that the caller wrote limits.pids; else a default that may be
	// enforced by whatever the host has.
	PidsWritten bool
	// StateDir is the sandbox's own directory (0700, absolute), or empty when
	// nothing of it may outlive the supervisor.
	StateDir string
	// Persist: the sandbox outlives its supervisor until Expires (zero: never) and can be adopted.
	Persist bool
	Expires time.Time
}

// Instance is a sandbox on a backend.
type Instance interface {
	// Start runs a process. It returns once the process exists; a failure to
	// execute the program is reported by Wait.
	Start(ctx context.Context, p *Process, io Stdio) (Task, error)
	// Files gives the sandbox's own view of its files.
	Files() Files
	// Usage is that of the whole sandbox so far.
	Usage(ctx context.Context) (Usage, error)
	// Report says what confines the sandbox, from read-back.
	Report() Report
	// Alive returns nil while the sandbox can run executions.
	Alive(ctx context.Context) error
	// Close ends it: processes, mounts, cgroups, namespaces, files. Idempotent.
	// It returns after everything is gone.
	Close(ctx context.Context) error
}

// Process is one program to run.
type Process struct {
	ID      string        // execution id
	Args    []string      // argv; Args[0] is looked up in PATH of Env inside the sandbox when it has no slash
	Env     []string      // complete, "K=V"
	Dir     string        // absolute, inside
	User    string        // "" or "user": the sandbox user; "root": uid 0 inside, where the backend maps one
	TTY     bool          // Stdio.Stdin is the slave of a pty and becomes the controlling terminal
	Timeout time.Duration // wall clock from the clone; 0 = none. Kept by the backend
	Limits  Limits        // effective for this execution (CPUTime, Memory, OpenFiles, FileSize, Core, CPU)
}

// Stdio are the process's ends of its streams. The backend takes over the
// process's ends and closes them in the supervisor. Keep ends, when set, are the
// supervisor's ends: a persistent sandbox's keeper holds duplicates of them.
type Stdio struct {
	Stdin, Stdout, Stderr             *os.File
	KeepStdin, KeepStdout, KeepStderr *os.File
	// Extra are further descriptors, entry i as 3+i. They stay the caller's: Start
	// passes duplicates on. A backend that cannot refuses with UNSUPPORTED.
	Extra []*os.File
}

// Task is a running process with its whole tree.
type Task interface {
	// Wait returns once the whole tree is gone. It may be called by many and again.
	Wait(ctx context.Context) (Exit, error)
	// Signal sends to the main process.
	Signal(ctx context.Context, sig syscall.Signal) error
	// SignalTree sends to every process of the tree.
	SignalTree(ctx context.Context, sig syscall.Signal) error
	// Kill ends the whole tree. It does not wait.
	Kill(ctx context.Context) error
}

// Exit is how a process ended, as the trusted side saw it.
type Exit struct {
	Code       int            // exit status, or -1
	Signal     syscall.Signal // 0, or what killed the main process
	ExecErr    *Error         // the program was never executed: step and errno
	TimedOut   bool           // the backend's wall clock ended it
	OOM        bool           // the memory limit killed in its tree
	CPUSpent   bool           // the CPU budget ended it
	PidsHit    bool           // a fork was refused by the pids limit meanwhile
	DiskFull   bool           // the disk or inode limit was reached at the end
	Unkillable int            // processes left in state D
	StartedAt  time.Time
	ExitedAt   time.Time // main process
	ReapedAt   time.Time // whole tree
	Usage      Usage
	Report     Report
}

// Files are the primitives on a sandbox's own view of its files. Names are
// slash-separated, absolute or relative to "/". Resolution happens inside the
// sandbox's root by the kernel and never leaves it. Errors are *fs.PathError.
type Files interface {
	// OpenFile opens a regular file or directory; never blocks on a FIFO, never opens a device.
	// New files belong to the sandbox's user.
	OpenFile(name string, flag int, perm fs.FileMode) (Handle, error)
	Mkdir(name string, perm fs.FileMode) error
	Remove(name string) error // a file or an empty directory
	RemoveAll(name string) error
	Rename(oldname, newname string) error
	Symlink(target, name string) error
	Readlink(name string) (string, error)
	Stat(name string) (fs.FileInfo, error)
	Lstat(name string) (fs.FileInfo, error)
	Chmod(name string, mode fs.FileMode) error
	Chtimes(name string, mtime time.Time) error
	// Watch reports changes below a directory (not recursive) until ctx ends.
	Watch(ctx context.Context, name string) (<-chan FileEvent, error)
}

// Handle is an open file or directory, with the meaning of the methods of
// [os.File], which is one. A backend on another machine has its own.
type Handle interface {
	io.ReadWriteSeeker
	io.ReaderAt
	io.WriterAt
	io.Closer
	Stat() (fs.FileInfo, error)
	Truncate(size int64) error
	Chmod(mode fs.FileMode) error
	Readdirnames(n int) ([]string, error)
}

// FileEvent is a change seen by Watch.
type FileEvent struct {
	Op   string `json:"op"` // create, write, remove, rename, chmod, overflow
	Name string `json:"name"`
}

// Optional abilities, found by assertion.
type (
	// Pauser freezes and thaws every process of a sandbox.
	Pauser interface {
		Pause(ctx context.Context) error
		Resume(ctx context.Context) error
	}
	// TTYOpener makes a terminal that belongs to the sandbox.
	TTYOpener interface {
		OpenTTY(rows, cols uint16) (master, slave *os.File, err error)
	}
	// Expirer is an ability of a persistent [Instance]: to learn when its life ends
	// while no supervisor is connected; the zero time: never.
	Expirer interface {
		Expire(ctx context.Context, at time.Time) error
	}
	// Settler is an ability of a [Task] whose end is kept until it was taken: Settle
	// says that it is known elsewhere now.
	Settler interface {
		Settle()
	}
	// Resizer is an ability of a [Task] whose terminal is not on this host.
	Resizer interface {
		Resize(rows, cols uint16) error
	}
	// Cleaner removes what killed supervisors left on the host outside of any
	// ledger, and touches nothing that a living one owns. GC and Recover ask for it.
	Cleaner interface {
		Clean(ctx context.Context) error
	}
	// Adopter takes back a persistent sandbox whose supervisor went away.
	Adopter interface {
		// Adopt connects to the sandbox of this plan. The tasks are those that are
		// still running or whose end was not yet collected.
		Adopt(ctx context.Context, plan *Plan) (Instance, []AdoptedTask, error)
		// Sweep removes what a dead supervisor's sandbox left; it touches nothing
		// that is not provably of that sandbox.
		Sweep(ctx context.Context, id, stateDir string) error
	}
)

// AdoptedTask is an execution found in an adopted sandbox.
type AdoptedTask struct {
	ID                    string
	Task                  Task
	Stdin, Stdout, Stderr *os.File // supervisor's ends; nil where none is kept
}
