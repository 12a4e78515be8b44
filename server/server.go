package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"belljar"
	"belljar/api/belljar/v1/belljarv1connect"
	"belljar/internal/wire"
	"belljar/server/audit"
	"belljar/server/state"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectproto"
)

// Defaults of [Config].
const (
	DefaultTTL = 15 * time.Minute

	maxUnary   = 8 << 20 // bytes of a request that is one message
	keepAlive  = 15 * time.Second
	maxWait    = 5 * time.Minute
	defaultGet = 30 * time.Second
)

// Config configures a [Server]. Runtime and Auth are needed.
type Config struct {
	// Runtime runs everything. The server does not close it.
	Runtime *belljar.Runtime
	// Auth finds out who calls.
	Auth Authenticator
	// Store keeps tenants, keys, quotas and idempotency keys; nil: there are none.
	Store *state.Store
	// Audit gets a line per act. Acts that it cannot take are refused. nil: none is kept.
	Audit *audit.Log
	// AuditCommands has the log hold command lines instead of their hash.
	AuditCommands bool
	// TTL is the lifetime of sandboxes whose spec has none; default 15 min.
	TTL time.Duration
	// Version is what Info tells.
	Version string
	// Logger gets a line per request; default: nothing is logged.
	Logger *slog.Logger
}

// Server serves the API.
type Server struct {
	cfg     Config
	rt      *belljar.Runtime
	log     *slog.Logger
	started time.Time
	mux     *http.ServeMux
	handler http.Handler

	draining atomic.Bool
	ready    atomic.Bool
	running  atomic.Int32 // executions under way through this server
	quotas   quotas
	keys     *Keys // makes tokens; nil without a store

	mu      sync.Mutex
	creates map[createKey]*created // by idempotency key
}

// New makes a server.
func New(cfg Config) (*Server, error) {
	if cfg.Runtime == nil || cfg.Auth == nil {
		return nil, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "new server", Message: "Runtime and Auth are needed"}
	}
	if cfg.TTL < 0 {
		return nil, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "new server", Message: "a negative TTL"}
	}
	s := &Server{cfg: cfg, rt: cfg.Runtime, log: cfg.Logger, started: time.Now(), creates: map[createKey]*created{}, mux: http.NewServeMux()}
	s.cfg.TTL = cmp.Or(cfg.TTL, DefaultTTL)
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if cfg.Store != nil {
		var err error
		if s.keys, err = NewKeys(cfg.Store); err != nil {
			return nil, err
		}
	}
	rpc := connect.NewServer(s.intercept)
	belljarv1connect.RegisterSandboxServiceHandler(rpc, sandboxes{s: s})
	belljarv1connect.RegisterExecutionServiceHandler(rpc, executions{s: s})
	belljarv1connect.RegisterFileServiceHandler(rpc, files{s: s})
	belljarv1connect.RegisterHostServiceHandler(rpc, host{s: s})
	belljarv1connect.RegisterAdminServiceHandler(rpc, admin{s: s})
	belljarv1connect.RegisterPortServiceHandler(rpc, belljarv1connect.UnimplementedPortServiceHandler{})
	connecthttp.Mount(s.mux, rpc,
		connecthttp.WithReadMaxBytes(maxUnary),
		connecthttp.WithCodecs(connectproto.NewBinaryCodec(), strictJSON()),
		// Small answers are not worth the time, output is often compressed already.
		connecthttp.WithCompressMinBytes(64<<10),
	)
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok\n") })
	s.mux.HandleFunc("GET /readyz", s.readyz)
	s.handler = http.HandlerFunc(s.serve)
	return s, nil
}

// strictJSON refuses fields that the API does not have: a misspelt limit must
// not be no limit.
func strictJSON() connect.Codec {
	c := connectproto.NewJSONCodec()
	c.UnmarshalOptions.DiscardUnknown = false
	return c
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // a caller that is gone misses nothing
}

// Ready says that sandboxes of a former daemon are taken back, or that they are
// being given up again.
func (s *Server) Ready(yes bool) { s.ready.Store(yes) }

func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	switch {
	case s.draining.Load():
		answer(w, http.StatusServiceUnavailable, "draining\n")
	case !s.ready.Load():
		answer(w, http.StatusServiceUnavailable, "recovering\n")
	default:
		answer(w, http.StatusOK, "ready\n")
	}
}

// Handler is the whole API as an HTTP handler.
func (s *Server) Handler() http.Handler { return s.handler }

// serve authenticates before anything of a request's body is read.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/healthz", "/readyz":
		s.mux.ServeHTTP(w, r)
		return
	}
	conn, ok := r.Context().Value(connKey{}).(Conn)
	if !ok {
		conn.UID = -1 // not through Serve
	}
	conn.TLS = r.TLS
	who, err := s.cfg.Auth.Authenticate(r.Context(), r.Header, conn)
	if err != nil {
		if werr := connecthttp.NewErrorWriter().Write(w, r, rpcError(err)); werr != nil {
			s.log.Debug("answer", "err", werr)
		}
		return
	}
	s.mux.ServeHTTP(w, r.WithContext(withCaller(r.Context(), who)))
}

// intercept turns our errors into the protocol's and logs one line per call,
// without anything of its content.
func (s *Server) intercept(next connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
		start := time.Now()
		who, _ := ctx.Value(callerKey{}).(Caller)
		err := s.admit(who)
		if err == nil {
			err = next(ctx, spec, stream)
		}
		if s.log.Enabled(ctx, slog.LevelInfo) {
			code := "ok"
			if err != nil {
				code = connect.CodeOf(rpcError(err)).String()
			}
			s.log.LogAttrs(ctx, slog.LevelInfo, "call", slog.String("procedure", spec.Procedure), slog.String("tenant", who.Tenant),
				slog.String("key", who.Key), slog.String("code", code), slog.Duration("took", time.Since(start)))
		}
		return rpcError(err)
	}
}

// sandbox is the caller's sandbox of this id or name. Another tenant's does not exist.
func (s *Server) sandbox(ctx context.Context, scope, id string) (*belljar.Sandbox, Caller, error) {
	who, err := caller(ctx, scope)
	if err != nil {
		return nil, who, err
	}
	if id == "" {
		return nil, who, bad("sandbox", "empty")
	}
	sb, err := s.rt.Get(id)
	if err != nil {
		sb, err = s.rt.Find(who.Tenant, id)
	}
	if err != nil || sb.Tenant() != who.Tenant || who.Sandbox != "" && who.Sandbox != sb.ID() {
		return nil, who, &belljar.Error{Code: belljar.CodeNotFound, Op: "get sandbox", Message: fmt.Sprintf("no sandbox %.80q", id)}
	}
	return sb, who, nil
}

// ended is the caller's sandbox of this id or name that ended, while it is kept.
func (s *Server) ended(ctx context.Context, scope, id string) (*belljar.Past, error) {
	who, err := caller(ctx, scope)
	if err != nil {
		return nil, err
	}
	var found *belljar.Past
	for _, p := range s.rt.PastList(who.Tenant) { // the last of a name is the one that is meant
		if (p.ID == id || p.Name == id) && (who.Sandbox == "" || who.Sandbox == p.ID) {
			found = p
		}
	}
	if found == nil {
		return nil, &belljar.Error{Code: belljar.CodeNotFound, Op: "get sandbox", Message: fmt.Sprintf("no sandbox %.80q", id)}
	}
	return found, nil
}

// audit writes down an act, before it is done. Where that cannot be, the act is refused.
func (s *Server) audit(ctx context.Context, act, object, detail string) error {
	if s.cfg.Audit == nil {
		return nil
	}
	who, _ := ctx.Value(callerKey{}).(Caller)
	return s.cfg.Audit.Append(audit.Entry{Tenant: who.Tenant, Key: who.Key, Act: act, Object: wire.Text(object), Detail: wire.Text(detail)})
}

// accepting returns UNAVAILABLE while the server takes nothing new.
func (s *Server) accepting(op string) error {
	if s.draining.Load() {
		return &belljar.Error{Code: belljar.CodeUnavailable, Op: op, Message: "the daemon is draining", Recoverable: true, Hint: "try another one, or later"}
	}
	return nil
}

type connKey struct{}

// HTTP makes the HTTP server for this API: bounded headers and times, HTTP/1.1
// and HTTP/2 without TLS as well.
func (s *Server) HTTP() *http.Server {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           s.handler,
		Protocols:         p,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 1000, SendPingTimeout: 30 * time.Second},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, Conn{UID: peerUID(c)})
		},
	}
}

// Serve serves on a listener until it is closed or ctx ends; then it waits for
// requests under way, but not longer than grace.
func (s *Server) Serve(ctx context.Context, l net.Listener, grace time.Duration) error {
	h := s.HTTP()
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if h.Shutdown(ctx) != nil {
			_ = h.Close()
		}
	})
	err := h.Serve(l)
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
