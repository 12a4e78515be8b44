package server

import (
	"context"
	"net/http"
	"slices"

	"belljar"
)

// Local lets in whoever connects through a unix socket as one of these users,
// with every scope of one tenant. The kernel says who they are.
type Local struct {
	UIDs   []int
	Tenant string // default "default"
	// Next is asked about everybody else; nil: they are refused.
	Next Authenticator
}

// Authenticate implements [Authenticator].
func (l Local) Authenticate(ctx context.Context, h http.Header, conn Conn) (Caller, error) {
	given := h.Get("Authorization") != "" || h.Get("X-Api-Key") != ""
	if !given && conn.UID >= 0 && slices.Contains(l.UIDs, conn.UID) {
		tenant := l.Tenant
		if tenant == "" {
			tenant = "default"
		}
		return Caller{Tenant: tenant, Scopes: []string{ScopeAll}}, nil
	}
	if l.Next != nil {
		return l.Next.Authenticate(ctx, h, conn)
	}
	return Caller{}, &belljar.Error{Code: belljar.CodeUnauthenticated, Op: "request", Message: "not a user that this socket serves", Hint: "connect as the user that runs the daemon"}
}
