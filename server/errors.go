package server

import (
	"errors"

	"belljar"
	v1 "belljar/api/belljar/v1"
	"belljar/internal/wire"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/proto"
)

// codes says with which code of the protocol each of ours is answered; the
// HTTP status of JSON callers follows from it.
var codes = map[belljar.Code]connect.Code{
	belljar.CodeInvalidSpec:          connect.CodeInvalidArgument,
	belljar.CodeInvalidBackend:       connect.CodeInvalidArgument,
	belljar.CodeUnsupported:          connect.CodeUnimplemented,
	belljar.CodeIsolationUnavailable: connect.CodeFailedPrecondition,
	belljar.CodeExecFailed:           connect.CodeFailedPrecondition,
	belljar.CodeFS:                   connect.CodeFailedPrecondition,
	belljar.CodeNotFound:             connect.CodeNotFound,
	belljar.CodeConflict:             connect.CodeAborted,
	belljar.CodeDestroyed:            connect.CodeNotFound,
	belljar.CodeCPU:                  connect.CodeResourceExhausted,
	belljar.CodeOOM:                  connect.CodeResourceExhausted,
	belljar.CodeDisk:                 connect.CodeResourceExhausted,
	belljar.CodeOutput:               connect.CodeResourceExhausted,
	belljar.CodePids:                 connect.CodeResourceExhausted,
	belljar.CodeTimeout:              connect.CodeDeadlineExceeded,
	belljar.CodeCancelled:            connect.CodeCanceled,
	belljar.CodePolicyInvalid:        connect.CodeInvalidArgument,
	belljar.CodePolicyDenied:         connect.CodePermissionDenied,
	belljar.CodePolicyUnenforceable:  connect.CodeFailedPrecondition,
	belljar.CodeUnauthenticated:      connect.CodeUnauthenticated,
	belljar.CodePermissionDenied:     connect.CodePermissionDenied,
	belljar.CodeQuotaExceeded:        connect.CodeResourceExhausted,
	belljar.CodeUnavailable:          connect.CodeUnavailable,
	belljar.CodeInternal:             connect.CodeInternal,
}

// rpcError is err as the protocol wants it, with our Error as its detail.
func rpcError(err error) error {
	if err == nil {
		return nil
	}
	if ce := (*connect.Error)(nil); errors.As(err, &ce) {
		return ce
	}
	m := wire.Error(err)
	code, ok := codes[belljar.Code(m.Code)]
	if !ok {
		code = connect.CodeInternal
	}
	ce := connect.NewError(code, text(m))
	if b, err := proto.Marshal(m); err == nil {
		ce = ce.WithDetail(&connect.ErrorDetail{Type: string((*v1.Error)(nil).ProtoReflect().Descriptor().FullName()), Value: b})
	}
	return ce
}

func text(m *v1.Error) string {
	s := m.Message
	if m.Op != "" {
		s = m.Op + ": " + s
	}
	if m.Hint != "" {
		s += " (" + m.Hint + ")"
	}
	return s
}

// bad is INVALID_SPEC for a field of a request.
func bad(field, message string) error {
	return &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "request " + field, Message: message, Recoverable: true}
}
