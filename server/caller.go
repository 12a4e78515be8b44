package server

import (
	"context"
	"crypto/tls"
	"net/http"
	"slices"

	"belljar"
	"belljar/server/state"
)

// Caller is who makes a request.
type Caller struct {
	// Tenant owns what the caller makes, and is all that the caller sees.
	Tenant string
	// Key is the id of the key or token that was shown, for logs and quotas; never
	// the key itself.
	Key string
	// Scopes are what the caller may do; [ScopeAll] stands for everything.
	Scopes []string
	// Sandbox, when set, is the only one that the caller may touch.
	Sandbox string
	// Ports, when set, are the only ones that may be reached.
	Ports []uint32
	// Quota is that of the key; the tenant's applies besides.
	Quota state.Quota
}

// Scopes.
const (
	ScopeAll            = "*"
	ScopeSandboxesRead  = "sandboxes:read"
	ScopeSandboxesWrite = "sandboxes:write"
	ScopeExec           = "exec"
	ScopeFilesRead      = "files:read"
	ScopeFilesWrite     = "files:write"
	ScopePorts          = "ports"
	ScopeAdmin          = "admin"
)

// May reports whether the caller has a scope.
func (c Caller) May(scope string) bool {
	return slices.Contains(c.Scopes, scope) || slices.Contains(c.Scopes, ScopeAll)
}

// Authenticator finds out who calls. It answers UNAUTHENTICATED, in the same time
// for an unknown key as for a wrong one.
type Authenticator interface {
	Authenticate(ctx context.Context, h http.Header, conn Conn) (Caller, error)
}

// Conn is what is known of a connection before a request comes.
type Conn struct {
	// UID of the process at the other end of a unix socket; -1: not such a socket.
	UID int
	// TLS is the state of a TLS connection.
	TLS *tls.ConnectionState
}

type callerKey struct{}

func withCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// anybody is who makes the request of this context.
func anybody(ctx context.Context) (Caller, error) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	if !ok {
		return c, &belljar.Error{Code: belljar.CodeUnauthenticated, Op: "request", Message: "no key was given", Hint: "send Authorization: Bearer <key>"}
	}
	return c, nil
}

// caller is who makes the request of this context, if they may do this.
func caller(ctx context.Context, scope string) (Caller, error) {
	c, err := anybody(ctx)
	if err != nil {
		return c, err
	}
	if !c.May(scope) {
		return c, &belljar.Error{Code: belljar.CodePermissionDenied, Op: "request", Message: "the key does not have the scope " + scope, Hint: "use a key with it"}
	}
	return c, nil
}
