// Package attendant keeps sandboxes that outlive one command line. It is a
// process of the same binary, one for each state directory, that owns the runtime: started
// by the first command that needs it, gone when no sandbox is left. Commands speak to it
// over a unix socket in the state directory, which only this user can enter, and
// pass it the ends of a program's streams as descriptors.
//
// It is no daemon: it has no tenants, no keys and no API for others. When it is
// killed, the sandboxes live on under their keepers, and the next command starts
// another one, which adopts them.
package attendant

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"belljar"
)

// Version of the protocol; both sides are the same binary, except after an upgrade.
const Version = 1

const (
	socketName = "attendant.sock"
	lockName   = "attendant.lock"
	logName    = "attendant.log"
	maxFrame   = 4 << 20
)

// Request is what a command asks for, one for each connection; exec takes
// further ones with Op cancel, kill and resize.
type Request struct {
	Version int           `json:"version"`
	Op      string        `json:"op"`
	Spec    *belljar.Spec `json:"spec,omitempty"`
	Sandbox string        `json:"sandbox,omitempty"` // id or name
	Exec    string        `json:"exec,omitempty"`
	Command *Command      `json:"command,omitempty"`
	Src     string        `json:"src,omitempty"`
	Dst     string        `json:"dst,omitempty"`
	Follow  bool          `json:"follow,omitempty"`
	Rows    uint16        `json:"rows,omitempty"`
	Cols    uint16        `json:"cols,omitempty"`
}

// Operations. Those with descriptors say which.
const (
	OpCreate   = "create"
	OpExec     = "exec" // stdin, stdout, stderr, unless detached
	OpList     = "list"
	OpLogs     = "logs" // stdout, stderr
	OpRemove   = "remove"
	OpGC       = "gc"
	OpCopyIn   = "copy-in"
	OpCopyOut  = "copy-out"
	OpUpload   = "upload"   // a tar stream
	OpDownload = "download" // a tar stream
	OpCancel   = "cancel"
	OpKill     = "kill"
	OpResize   = "resize"
)

// Command is a program to run in a sandbox.
type Command struct {
	Args    []string       `json:"args"`
	Env     []string       `json:"env,omitempty"`
	Dir     string         `json:"dir,omitempty"`
	User    string         `json:"user,omitempty"`
	ID      string         `json:"id,omitempty"`
	Timeout time.Duration  `json:"timeout,omitempty"`
	Limits  belljar.Limits `json:"limits,omitzero"`
	TTY     *belljar.TTY   `json:"tty,omitempty"`
	Stdin   bool           `json:"stdin,omitempty"`
	Detach  bool           `json:"detach,omitempty"`
}

// Reply is what the attendant answers. An exec has one with Started first.
type Reply struct {
	Error    *belljar.Error  `json:"error,omitempty"`
	Code     int             `json:"code,omitempty"` // exit status that belongs to Result or Error
	Started  string          `json:"started,omitempty"`
	Result   *belljar.Result `json:"result,omitempty"`
	Report   *belljar.Report `json:"report,omitempty"` // of the sandbox
	Sandbox  *SandboxInfo    `json:"sandbox,omitempty"`
	Listing  *Listing        `json:"listing,omitempty"`
	Swept    *belljar.Swept  `json:"swept,omitempty"`
	Finished bool            `json:"finished,omitempty"` // of logs: the execution has ended
}

// Listing is what exists.
type Listing struct {
	Sandboxes  []SandboxInfo `json:"sandboxes"`
	Executions []ExecInfo    `json:"executions"`
}

// SandboxInfo describes a sandbox.
type SandboxInfo struct {
	ID         string               `json:"id"`
	Name       string               `json:"name"`
	State      belljar.SandboxState `json:"state"`
	Backend    string               `json:"backend"`
	Image      string               `json:"image,omitempty"`
	Labels     map[string]string    `json:"labels,omitempty"`
	Created    time.Time            `json:"created"`
	Expires    time.Time            `json:"expires,omitzero"`
	Executions int                  `json:"executions"` // running
	Usage      belljar.Usage        `json:"usage"`
	Mode       belljar.Mode         `json:"mode"`
}

// ExecInfo describes an execution.
type ExecInfo struct {
	ID       string        `json:"id"`
	Sandbox  string        `json:"sandbox"`
	Args     []string      `json:"args,omitempty"` // unknown of what was adopted
	State    belljar.State `json:"state"`
	Cause    belljar.Cause `json:"cause,omitempty"`
	Code     int           `json:"code"` // exit status, once ended
	Started  time.Time     `json:"started"`
	Finished time.Time     `json:"finished,omitzero"`
}

// encodeFrame returns a length and a value in JSON.
func encodeFrame(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(b) > maxFrame {
		return nil, fmt.Errorf("message of %d bytes", len(b))
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...), nil
}

// decodeFrame reads the value that follows the length in head.
func decodeFrame(head [4]byte, r io.Reader, v any) error {
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return fmt.Errorf("message of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}
