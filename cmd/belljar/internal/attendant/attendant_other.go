//go:build !linux

package attendant

import (
	"context"
	"io"
	"os"

	"belljar"
)

var errUnsupported = &belljar.Error{
	Code: belljar.CodeUnsupported, Op: "attendant", Message: "sandboxes that outlive a command are not built for this platform", Hint: "run it on Linux",
}

// Server refuses.
type Server struct {
	Dir      string
	Runtime  func(context.Context, belljar.Config) (*belljar.Runtime, error)
	ExitCode func(*belljar.Result, error) int
}

// Serve refuses.
func (*Server) Serve(_ context.Context, ready func(error)) error {
	ready(errUnsupported)
	return errUnsupported
}

// Client refuses.
type Client struct {
	Dir     string
	Command []string
}

// Exists is false.
func (*Client) Exists() bool { return false }

// Do refuses.
func (*Client) Do(context.Context, *Request, ...*os.File) (*Reply, error) {
	return nil, errUnsupported
}

// Open refuses.
func (*Client) Open(context.Context, *Request, ...*os.File) (*Session, error) {
	return nil, errUnsupported
}

// Session does not exist.
type Session struct{}

// Reply refuses.
func (*Session) Reply() (*Reply, error) { return nil, errUnsupported }

// Send refuses.
func (*Session) Send(*Request) error { return errUnsupported }

// Close does nothing.
func (*Session) Close() {}

// Pipes do not exist.
type Pipes struct{ Files []*os.File }

// Connect refuses.
func Connect(io.Reader, ...io.Writer) (*Pipes, error) { return nil, errUnsupported }

// Wait returns.
func (*Pipes) Wait() {}

// Outputs are none.
func (*Pipes) Outputs() []*os.File { return nil }

// Report does nothing.
func Report(io.Writer, error) {}
