package belljar

import "time"

// State is the state of an execution. The first terminal state wins and stays.
type State string

// States of an execution.
const (
	Queued    State = "queued" // only under an admission limit
	Running   State = "running"
	Completed State = "completed"
	Failed    State = "failed"
	Cancelled State = "cancelled"
	TimedOut  State = "timedout"
)

// Cause says why an execution ended.
type Cause string

// Causes.
const (
	CauseExit      Cause = "exit"
	CauseSignal    Cause = "signal"
	CauseTimeout   Cause = "timeout"
	CauseCPU       Cause = "cpu"
	CauseMemory    Cause = "memory"
	CauseDisk      Cause = "disk"
	CauseOutput    Cause = "output"
	CausePids      Cause = "pids"
	CausePolicy    Cause = "policy"
	CauseCancelled Cause = "cancelled"
	CauseInfra     Cause = "infra" // the machinery failed, not the program
)

// Result is what is known of an ended execution. It exists for every one,
// whatever the cause.
type Result struct {
	ID       string `json:"id"`
	State    State  `json:"state"`
	Cause    Cause  `json:"cause"`
	ExitCode int    `json:"exitCode"`         // 0..255, 128+signal, or -1
	Signal   string `json:"signal,omitempty"` // "SIGSEGV"

	Stdout       []byte `json:"stdout,omitempty"` // the last 16 MiB
	Stderr       []byte `json:"stderr,omitempty"`
	Truncated    bool   `json:"truncated,omitempty"`
	DroppedBytes int64  `json:"droppedBytes,omitempty"` // not retained, both streams

	StartedAt  time.Time `json:"startedAt"`
	FinishedAt time.Time `json:"finishedAt"`
	DurationMs float64   `json:"durationMs"`
	Timings    Timings   `json:"timings"`

	Usage       Usage  `json:"usage"`
	Confinement Report `json:"confinement"`
	Backend     string `json:"backend"`
	SpecVersion string `json:"specVersion"`
	Error       *Error `json:"error,omitempty"`
}

// Timings are the phases of an execution, in microseconds.
type Timings struct {
	QueueUs int64 `json:"queueUs"` // waiting for admission
	SpawnUs int64 `json:"spawnUs"` // from request to a cloned process
	RunUs   int64 `json:"runUs"`   // from clone to exit of the main process
	ReapUs  int64 `json:"reapUs"`  // until its whole tree was gone
	DrainUs int64 `json:"drainUs"` // until its output was read
}

// Usage is what the kernel counted. A nil field was not measured.
type Usage struct {
	CPUTimeMs       *float64 `json:"cpuTimeMs,omitempty"` // user + system, whole tree
	UserMs          *float64 `json:"userMs,omitempty"`
	SystemMs        *float64 `json:"systemMs,omitempty"`
	PeakMemoryBytes *int64   `json:"peakMemoryBytes,omitempty"`
	PeakPids        *int64   `json:"peakPids,omitempty"`
	IOReadBytes     *int64   `json:"ioReadBytes,omitempty"`
	IOWriteBytes    *int64   `json:"ioWriteBytes,omitempty"`
}
