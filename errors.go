package belljar

// Code says what kind of error happened. The set is closed; each code has a
// page in docs/errors.md.
type Code string

// The codes.
const (
	CodeInvalidSpec          Code = "INVALID_SPEC"
	CodeInvalidBackend       Code = "INVALID_BACKEND"
	CodeUnsupported          Code = "UNSUPPORTED"
	CodeIsolationUnavailable Code = "ISOLATION_UNAVAILABLE"
	CodeExecFailed           Code = "EXEC_FAILED"
	CodeFS                   Code = "FS_ERROR"
	CodeNotFound             Code = "NOT_FOUND"
	CodeConflict             Code = "CONFLICT"
	CodeDestroyed            Code = "DESTROYED"
	CodeCPU                  Code = "ERR_CPU_EXCEEDED"
	CodeOOM                  Code = "ERR_OOM_EXCEEDED"
	CodeDisk                 Code = "ERR_DISK_QUOTA_EXCEEDED"
	CodeOutput               Code = "ERR_OUTPUT_EXCEEDED"
	CodePids                 Code = "ERR_PIDS_EXCEEDED"
	CodeTimeout              Code = "TIMEOUT"
	CodeCancelled            Code = "CANCELLED"
	CodePolicyInvalid        Code = "POLICY_INVALID"
	CodePolicyDenied         Code = "POLICY_DENIED"
	CodePolicyUnenforceable  Code = "POLICY_UNENFORCEABLE"
	CodeUnauthenticated      Code = "UNAUTHENTICATED"
	CodePermissionDenied     Code = "PERMISSION_DENIED"
	CodeQuotaExceeded        Code = "QUOTA_EXCEEDED"
	CodeUnavailable          Code = "UNAVAILABLE"
	CodeInternal             Code = "INTERNAL"
)

// Error is the one error type of this module.
type Error struct {
	Code        Code   `json:"code"`
	Op          string `json:"op,omitempty"`          // what was attempted: "create", "exec: execveat", "spec limits.memory"
	Message     string `json:"message"`               // lower case, no trailing full stop
	Limit       string `json:"limit,omitempty"`       // the limit that was hit, with its unit
	Observed    string `json:"observed,omitempty"`    // what was seen instead
	Recoverable bool   `json:"recoverable,omitempty"` // the sandbox can still be used
	Hint        string `json:"hint,omitempty"`        // what to do about it
	Err         error  `json:"-"`                     // cause, for errors.Is and errors.As
}

// Error returns "op: message (hint)".
func (e *Error) Error() string {
	s := e.Message
	if s == "" && e.Err != nil {
		s = e.Err.Error()
	}
	if e.Op != "" {
		s = e.Op + ": " + s
	}
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an *Error of the same code with every other
// field empty: the form of the sentinels below.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == "" && t.Op == "" && t.Err == nil
}

// Sentinels for errors.Is.
var (
	ErrInvalidSpec          = &Error{Code: CodeInvalidSpec}
	ErrInvalidBackend       = &Error{Code: CodeInvalidBackend}
	ErrUnsupported          = &Error{Code: CodeUnsupported}
	ErrIsolationUnavailable = &Error{Code: CodeIsolationUnavailable}
	ErrExecFailed           = &Error{Code: CodeExecFailed}
	ErrFS                   = &Error{Code: CodeFS}
	ErrNotFound             = &Error{Code: CodeNotFound}
	ErrConflict             = &Error{Code: CodeConflict}
	ErrDestroyed            = &Error{Code: CodeDestroyed}
	ErrCPU                  = &Error{Code: CodeCPU}
	ErrOOM                  = &Error{Code: CodeOOM}
	ErrDisk                 = &Error{Code: CodeDisk}
	ErrOutput               = &Error{Code: CodeOutput}
	ErrPids                 = &Error{Code: CodePids}
	ErrTimeout              = &Error{Code: CodeTimeout}
	ErrCancelled            = &Error{Code: CodeCancelled}
	ErrPolicyDenied         = &Error{Code: CodePolicyDenied}
	ErrQuotaExceeded        = &Error{Code: CodeQuotaExceeded}
	ErrUnavailable          = &Error{Code: CodeUnavailable}
	ErrInternal             = &Error{Code: CodeInternal}
)
