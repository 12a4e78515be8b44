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
		if len(ce.Details()) > 0 {
			return ce
		}
		// What the protocol itself refused: a malformed or oversized message.
		return detailed(ce.Code(), &v1.Error{Code: string(ours(ce.Code())), Op: "request", Message: ce.Message(), Recoverable: true})
	}
	m := wire.Error(err)
	code, ok := codes[belljar.Code(m.Code)]
	if !ok {
		code = connect.CodeInternal
	}
	return detailed(code, m)
}

// ours is the first of our codes that is answered with this one.
func ours(code connect.Code) belljar.Code {
	for _, c := range []belljar.Code{
		belljar.CodeInvalidSpec, belljar.CodeUnauthenticated, belljar.CodePermissionDenied, belljar.CodeNotFound,
		belljar.CodeCancelled, belljar.CodeTimeout, belljar.CodeUnsupported, belljar.CodeUnavailable, belljar.CodeQuotaExceeded,
	} {
		if codes[c] == code {
			return c
		}
	}
	return belljar.CodeInternal
}

func detailed(code connect.Code, m *v1.Error) error {
	ce := connect.NewError(code, text(m))
	b, err := proto.Marshal(m)
	if err != nil {
		return ce // not UTF-8: the message says enough
	}
	return ce.WithDetail(&connect.ErrorDetail{Type: string(m.ProtoReflect().Descriptor().FullName()), Value: b})
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
