package remote

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"belljar"
	v1 "belljar/api/belljar/v1"
	"belljar/api/belljar/v1/belljarv1connect"
	"belljar/internal/wire"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// window is how many bytes of a stream may be under way: what a program has written
// and nobody here has read holds it back.
const window = 256 << 10

// Name is the name of the backend in a spec.
const Name = "remote"

// Config says where the daemon is.
type Config struct {
	// URL is unix:///path/of/socket, http://host:port or https://host:port.
	URL string
	// Key is an API key or an access token; empty where the socket says who calls.
	Key string
	// TLS configures https; nil: the system's authorities.
	TLS *tls.Config
	// Patience is how long a daemon that does not answer is waited for while an
	// execution is under way; default 30 s.
	Patience time.Duration
}

// Backend makes sandboxes on a daemon.
type Backend struct {
	cfg Config
	// Clients: unary calls are quicker over HTTP/1.1, streams in both directions need HTTP/2.
	Sandboxes  belljarv1connect.SandboxServiceClient
	Executions belljarv1connect.ExecutionServiceClient
	Files      belljarv1connect.FileServiceClient
	Ports      belljarv1connect.PortServiceClient
	Host       belljarv1connect.HostServiceClient
	Admin      belljarv1connect.AdminServiceClient

	streams struct {
		executions belljarv1connect.ExecutionServiceClient
		files      belljarv1connect.FileServiceClient
	}
	http []*http.Transport

	closing sync.Once
}

var _ belljar.Backend = (*Backend)(nil)

// New makes a backend. It does not connect.
func New(cfg Config) (*Backend, error) {
	invalid := func(msg string) (*Backend, error) {
		return nil, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "remote host", Message: msg, Hint: "write unix:///path, http://host:port or https://host:port"}
	}
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return invalid("not a URL")
	}
	cfg.Patience = cmp.Or(cfg.Patience, 30*time.Second)
	var dial func(ctx context.Context, network, addr string) (net.Conn, error)
	base := cfg.URL
	switch {
	case u.Scheme == "unix" && u.Host == "" && u.Path != "":
		base = "http://daemon"
		var d net.Dialer
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", u.Path) }
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && (u.Path == "" || u.Path == "/"):
		base = u.Scheme + "://" + u.Host
	default:
		return invalid("neither a unix socket nor an HTTP host")
	}
	b := &Backend{cfg: cfg}
	one, two := new(http.Protocols), new(http.Protocols)
	one.SetHTTP1(true)
	two.SetHTTP2(true)
	two.SetUnencryptedHTTP2(true)
	client := func(p *http.Protocols) *connect.Client {
		t := &http.Transport{
			DialContext: dial, TLSClientConfig: cfg.TLS, Protocols: p, MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute,
			DisableCompression: true, HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, MaxReceiveBufferPerStream: window},
		}
		b.http = append(b.http, t)
		// Without compression: on one machine it costs time, and with it the window does
		// not say how much is under way.
		return connect.NewClient(connecthttp.NewTransport(&http.Client{Transport: keyed{t, cfg.Key}}, base,
			connecthttp.WithReadMaxBytes(64<<20), connecthttp.WithCompressors()))
	}
	unary, stream := client(one), client(two)
	b.Sandboxes = belljarv1connect.NewSandboxServiceClient(unary)
	b.Executions = belljarv1connect.NewExecutionServiceClient(unary)
	b.Files = belljarv1connect.NewFileServiceClient(unary)
	b.Ports = belljarv1connect.NewPortServiceClient(stream)
	b.Host = belljarv1connect.NewHostServiceClient(unary)
	b.Admin = belljarv1connect.NewAdminServiceClient(unary)
	b.streams.executions = belljarv1connect.NewExecutionServiceClient(stream)
	b.streams.files = belljarv1connect.NewFileServiceClient(stream)
	return b, nil
}

// keyed adds the key to every request.
type keyed struct {
	t   *http.Transport
	key string
}

func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	if k.key != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+k.key)
	}
	return k.t.RoundTrip(r)
}

// Error is the error of a call as package belljar has it: what the daemon says,
// or UNAVAILABLE when there is no answer.
func Error(op string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &belljar.Error{Code: belljar.CodeCancelled, Op: op, Message: err.Error(), Recoverable: true, Err: err}
	}
	ce := (*connect.Error)(nil)
	if !errors.As(err, &ce) {
		return &belljar.Error{Code: belljar.CodeUnavailable, Op: op, Message: err.Error(), Recoverable: true, Err: err}
	}
	for _, d := range ce.Details() {
		m := &v1.Error{}
		if d.Type == string(m.ProtoReflect().Descriptor().FullName()) && proto.Unmarshal(d.Value, m) == nil {
			return wire.FromError(m)
		}
	}
	e := &belljar.Error{Code: belljar.CodeUnavailable, Op: op, Message: ce.Message(), Recoverable: true, Err: err, Hint: "is the daemon running?"}
	if !ce.IsRemote() {
		return e // the connection broke, whatever that looked like here
	}
	switch ce.Code() {
	case connect.CodeUnavailable:
	case connect.CodeCanceled, connect.CodeDeadlineExceeded:
		e.Code, e.Hint = belljar.CodeCancelled, ""
	case connect.CodeUnimplemented:
		e.Code, e.Hint = belljar.CodeUnsupported, "the daemon is older than this client"
	case connect.CodeUnauthenticated:
		e.Code, e.Hint = belljar.CodeUnauthenticated, ""
	default:
		e.Code, e.Hint = belljar.CodeInternal, ""
	}
	return e
}

// Name implements [belljar.Backend].
func (b *Backend) Name() string { return Name }

// Probe implements [belljar.Backend]: what the daemon's first backend promises,
// and that it is far away.
func (b *Backend) Probe(ctx context.Context) (belljar.Probe, error) {
	resp, err := b.Host.Capabilities(ctx, &v1.CapabilitiesRequest{})
	if err != nil {
		return belljar.Probe{}, Error("probe", err)
	}
	p := belljar.Probe{Backend: Name}
	if len(resp.Backends) > 0 {
		m := resp.Backends[0]
		p.Host, p.Layers = m.Host, wire.FromLayers(m.Layers)
		for _, c := range m.Capabilities {
			p.Capabilities = append(p.Capabilities, belljar.Capability{
				Name: c.Name, Support: belljar.Support(c.Support), Reason: c.Reason, Remedy: c.Remedy, Evidence: c.Evidence,
			})
		}
	}
	return p, nil
}

// Create implements [belljar.Backend].
func (b *Backend) Create(ctx context.Context, plan *belljar.Plan) (belljar.Instance, error) {
	spec := plan.Spec
	// What this side's runtime does by itself, or the daemon decides.
	spec.Backend, spec.Tenant, spec.Name, spec.Pool, spec.Timeout, spec.Limits.Output = "", "", "", nil, 0, 0
	if !plan.PidsWritten {
		spec.Limits.Pids = 0
	}
	m, err := wire.Struct(spec)
	if err != nil {
		return nil, err
	}
	resp, err := b.Sandboxes.Create(ctx, &v1.CreateSandboxRequest{Spec: m, IdempotencyKey: plan.ID})
	if err != nil {
		if ctx.Err() != nil {
			b.abandon(context.WithoutCancel(ctx), m, plan.ID)
		}
		return nil, Error("create", err)
	}
	return &instance{b: b, plan: plan, id: resp.Sandbox.GetId(), report: wire.FromReport(resp.Sandbox.GetConfinement())}, nil
}

// abandon destroys what a create that was given up has made, or is making.
func (b *Backend) abandon(ctx context.Context, spec *structpb.Struct, key string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, err := b.Sandboxes.Create(ctx, &v1.CreateSandboxRequest{Spec: spec, IdempotencyKey: key})
	if err != nil {
		return // there is none, or nobody to ask: its lifetime ends it
	}
	_, _ = b.Sandboxes.Destroy(ctx, &v1.DestroySandboxRequest{Sandbox: resp.Sandbox.GetId()})
}

// Close implements [belljar.Backend].
func (b *Backend) Close(context.Context) error {
	b.closing.Do(func() {
		for _, t := range b.http {
			t.CloseIdleConnections()
		}
	})
	return nil
}
