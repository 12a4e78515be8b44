package server

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"belljar"
	v1 "belljar/api/belljar/v1"
	"belljar/api/belljar/v1/belljarv1connect"
	"belljar/internal/wire"
	"belljar/server/state"

	"google.golang.org/protobuf/proto"
)

// sandboxes implements the SandboxService.
type sandboxes struct {
	belljarv1connect.UnimplementedSandboxServiceHandler
	s *Server
}

// keyLife is how long an idempotency key is remembered.
const keyLife = 24 * time.Hour

type createKey struct{ tenant, key string }

// created is what an idempotency key made, or is making.
type created struct {
	sum  [sha256.Size]byte // of the spec
	at   time.Time
	done chan struct{}
	id   string
	err  error
}

// Create implements the service.
func (x sandboxes) Create(ctx context.Context, req *v1.CreateSandboxRequest) (*v1.CreateSandboxResponse, error) {
	who, err := caller(ctx, ScopeSandboxesWrite)
	if err != nil {
		return nil, err
	}
	if who.Sandbox != "" {
		return nil, &belljar.Error{Code: belljar.CodePermissionDenied, Op: "create", Message: "the token is for one sandbox"}
	}
	if err := x.s.accepting("create"); err != nil {
		return nil, err
	}
	spec, err := wire.Spec(req.Spec)
	if err != nil {
		return nil, err
	}
	switch {
	case spec.Tenant == "":
		spec.Tenant = who.Tenant
	case spec.Tenant != who.Tenant:
		return nil, &belljar.Error{Code: belljar.CodePermissionDenied, Op: "create", Message: "the key is of another tenant", Hint: "leave tenant out of the spec"}
	}
	if spec.TTL == 0 {
		spec.TTL = x.s.cfg.TTL
	}
	if _, taken := spec.Labels[labelKey]; taken {
		return nil, bad("spec.labels", labelKey+" is the daemon's")
	}
	if who.Key != "" {
		spec.Labels = maps.Clone(spec.Labels)
		if spec.Labels == nil {
			spec.Labels = map[string]string{}
		}
		spec.Labels[labelKey] = who.Key
	}
	if req.IdempotencyKey == "" {
		sb, err := x.make(ctx, who, spec)
		if err != nil {
			return nil, err
		}
		return &v1.CreateSandboxResponse{Sandbox: describe(sb)}, nil
	}
	return x.createOnce(ctx, who, spec, req)
}

// make makes a sandbox within the caller's quotas.
func (x sandboxes) make(ctx context.Context, who Caller, spec belljar.Spec) (*belljar.Sandbox, error) {
	done, err := x.s.reserve(who, spec)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := x.s.audit(ctx, "sandbox.create", spec.Name, ""); err != nil {
		return nil, err
	}
	return x.s.rt.Create(ctx, spec)
}

// remember makes an idempotency key durable; without that its sandbox does not stay.
func (x sandboxes) remember(who Caller, key string, sb *belljar.Sandbox, sum [sha256.Size]byte) error {
	now := time.Now()
	err := x.s.cfg.Store.PutCreate(who.Tenant, key, state.Create{Sum: sum[:], Sandbox: sb.ID(), At: now}, now.Add(-keyLife))
	if err != nil {
		err = errors.Join(err, sb.Destroy(context.Background()))
	}
	return err
}

// createOnce makes the sandbox of an idempotency key, waits for whoever is making
// it, or returns what was made. A failure is not remembered.
func (x sandboxes) createOnce(ctx context.Context, who Caller, spec belljar.Spec, req *v1.CreateSandboxRequest) (*v1.CreateSandboxResponse, error) {
	if len(req.IdempotencyKey) > 255 {
		return nil, bad("idempotency_key", "longer than 255 bytes")
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(req.Spec)
	if err != nil {
		return nil, err
	}
	sum, key := sha256.Sum256(b), createKey{who.Tenant, req.IdempotencyKey}
	x.s.mu.Lock()
	for k, c := range x.s.creates {
		if time.Since(c.at) > keyLife {
			delete(x.s.creates, k)
		}
	}
	c := x.s.creates[key]
	if c == nil && x.s.cfg.Store != nil { // of a former daemon
		if old, ok, err := x.s.cfg.Store.Create(who.Tenant, req.IdempotencyKey); err == nil && ok && time.Since(old.At) < keyLife {
			c = &created{at: old.At, done: make(chan struct{}), id: old.Sandbox}
			copy(c.sum[:], old.Sum)
			close(c.done)
			x.s.creates[key] = c
		}
	}
	first := c == nil
	if first {
		c = &created{sum: sum, at: time.Now(), done: make(chan struct{})}
		x.s.creates[key] = c
	}
	x.s.mu.Unlock()
	if c.sum != sum {
		return nil, &belljar.Error{Code: belljar.CodeConflict, Op: "create", Message: "the idempotency key was used with another spec", Hint: "choose another key"}
	}
	if first {
		// Whoever waits must not depend on the connection of who came first.
		sb, err := x.make(context.WithoutCancel(ctx), who, spec)
		if err == nil && x.s.cfg.Store != nil {
			err = x.remember(who, req.IdempotencyKey, sb, sum)
		}
		if err != nil {
			c.err = err
			x.s.mu.Lock()
			delete(x.s.creates, key)
			x.s.mu.Unlock()
		} else {
			c.id = sb.ID()
		}
		close(c.done)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c.err != nil {
		return nil, c.err
	}
	sb, err := x.s.rt.Get(c.id)
	if err != nil {
		return nil, &belljar.Error{Code: belljar.CodeDestroyed, Op: "create", Message: "the sandbox of this idempotency key has ended", Hint: "choose another key"}
	}
	return &v1.CreateSandboxResponse{Sandbox: describe(sb), Existed: !first}, nil
}

// describe is a sandbox as message.
func describe(sb *belljar.Sandbox) *v1.Sandbox {
	spec := sb.Spec()
	m := &v1.Sandbox{
		Id: sb.ID(), Name: sb.Name(), Tenant: spec.Tenant, State: string(sb.State()), Reason: string(sb.Reason()),
		Backend: spec.Backend, Labels: spec.Labels, CreatedAt: wire.Time(sb.Created()), ExpiresAt: wire.Time(sb.Expires()),
		IdleTimeout: wire.Duration(spec.IdleTimeout), Confinement: wire.Report(sb.Report()),
	}
	m.Spec, _ = wire.Struct(spec) // a spec that was compiled is a JSON object
	return m
}

// Get implements the service.
func (x sandboxes) Get(ctx context.Context, req *v1.GetSandboxRequest) (*v1.GetSandboxResponse, error) {
	sb, _, err := x.s.sandbox(ctx, ScopeSandboxesRead, req.Sandbox)
	if errors.Is(err, belljar.ErrNotFound) {
		if p, perr := x.s.ended(ctx, ScopeSandboxesRead, req.Sandbox); perr == nil {
			return &v1.GetSandboxResponse{Sandbox: describePast(p)}, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return &v1.GetSandboxResponse{Sandbox: describe(sb)}, nil
}

// describePast is a sandbox that ended as message.
func describePast(p *belljar.Past) *v1.Sandbox {
	m := &v1.Sandbox{
		Id: p.ID, Name: p.Name, Tenant: p.Spec.Tenant, State: string(belljar.SandboxDestroyed), Reason: string(p.Reason), Backend: p.Spec.Backend,
		Labels: p.Spec.Labels, CreatedAt: wire.Time(p.Created), EndedAt: wire.Time(p.Ended), IdleTimeout: wire.Duration(p.Spec.IdleTimeout),
	}
	m.Spec, _ = wire.Struct(p.Spec) // a spec that was compiled is a JSON object
	return m
}

// List implements the service.
func (x sandboxes) List(ctx context.Context, req *v1.ListSandboxesRequest) (*v1.ListSandboxesResponse, error) {
	who, err := caller(ctx, ScopeSandboxesRead)
	if err != nil {
		return nil, err
	}
	size, err := pageSize(req.PageSize)
	if err != nil {
		return nil, err
	}
	after, err := readCursor(req.Cursor)
	if err != nil {
		return nil, err
	}
	resp := &v1.ListSandboxesResponse{}
	for _, sb := range x.s.rt.List() {
		if sb.Tenant() != who.Tenant || who.Sandbox != "" && who.Sandbox != sb.ID() || !matches(sb, req) {
			continue
		}
		at := sb.Created().UTC().Format(cursorTime) + sb.ID()
		if at <= after {
			continue
		}
		if len(resp.Sandboxes) == size {
			last := resp.Sandboxes[size-1]
			resp.NextCursor = cursor(last.CreatedAt.AsTime().Format(cursorTime) + last.Id)
			break
		}
		resp.Sandboxes = append(resp.Sandboxes, describe(sb))
	}
	return resp, nil
}

func matches(sb *belljar.Sandbox, req *v1.ListSandboxesRequest) bool {
	if len(req.States) > 0 && !slices.Contains(req.States, string(sb.State())) {
		return false
	}
	if len(req.Labels) == 0 {
		return true
	}
	labels := sb.Spec().Labels
	for k, v := range req.Labels {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// cursorTime sorts as text.
const cursorTime = "2006-01-02T15:04:05.000000000Z"

func cursor(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

func readCursor(s string) (string, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) > 256 || len(b) > 0 && !strings.Contains(string(b), "T") {
		return "", bad("cursor", "not one that List gave")
	}
	return string(b), nil
}

func pageSize(n int32) (int, error) {
	switch {
	case n < 0 || n > 1000:
		return 0, bad("page_size", "not from 1 to 1000")
	case n == 0:
		return 100, nil
	}
	return int(n), nil
}

// Extend implements the service.
func (x sandboxes) Extend(ctx context.Context, req *v1.ExtendSandboxRequest) (*v1.ExtendSandboxResponse, error) {
	sb, who, err := x.s.sandbox(ctx, ScopeSandboxesWrite, req.Sandbox)
	if err != nil {
		return nil, err
	}
	d, err := wire.FromDuration("ttl", req.Ttl)
	if err != nil {
		return nil, err
	}
	for _, o := range x.s.owners(who) {
		if o.quota.MaxTTL > 0 && d > o.quota.MaxTTL {
			return nil, exceeded(o, "lifetime", o.quota.MaxTTL.String(), d.String())
		}
	}
	if err := x.s.audit(ctx, "sandbox.extend", sb.ID(), d.String()); err != nil {
		return nil, err
	}
	if err := sb.Extend(ctx, d); err != nil {
		return nil, err
	}
	return &v1.ExtendSandboxResponse{Sandbox: describe(sb)}, nil
}

// Pause implements the service.
func (x sandboxes) Pause(ctx context.Context, req *v1.PauseSandboxRequest) (*v1.PauseSandboxResponse, error) {
	sb, _, err := x.s.sandbox(ctx, ScopeSandboxesWrite, req.Sandbox)
	if err != nil {
		return nil, err
	}
	return &v1.PauseSandboxResponse{}, sb.Pause(ctx)
}

// Resume implements the service.
func (x sandboxes) Resume(ctx context.Context, req *v1.ResumeSandboxRequest) (*v1.ResumeSandboxResponse, error) {
	sb, _, err := x.s.sandbox(ctx, ScopeSandboxesWrite, req.Sandbox)
	if err != nil {
		return nil, err
	}
	return &v1.ResumeSandboxResponse{}, sb.Resume(ctx)
}

// Destroy implements the service.
func (x sandboxes) Destroy(ctx context.Context, req *v1.DestroySandboxRequest) (*v1.DestroySandboxResponse, error) {
	sb, _, err := x.s.sandbox(ctx, ScopeSandboxesWrite, req.Sandbox)
	if err != nil {
		return nil, err
	}
	if err := x.s.audit(ctx, "sandbox.destroy", sb.ID(), ""); err != nil {
		return nil, err
	}
	return &v1.DestroySandboxResponse{}, sb.Destroy(ctx)
}

// Usage implements the service.
func (x sandboxes) Usage(ctx context.Context, req *v1.UsageRequest) (*v1.UsageResponse, error) {
	sb, _, err := x.s.sandbox(ctx, ScopeSandboxesRead, req.Sandbox)
	if err != nil {
		return nil, err
	}
	u, err := sb.Usage(ctx)
	if err != nil {
		return nil, err
	}
	return &v1.UsageResponse{Usage: wire.Usage(u)}, nil
}

// Token implements the service.
func (x sandboxes) Token(ctx context.Context, req *v1.TokenRequest) (*v1.TokenResponse, error) {
	sb, who, err := x.s.sandbox(ctx, ScopeSandboxesRead, req.Sandbox)
	if err != nil {
		return nil, err
	}
	if x.s.keys == nil {
		return nil, &belljar.Error{Code: belljar.CodeUnsupported, Op: "token", Message: "this daemon makes no tokens"}
	}
	if req.PathPrefix != "" {
		// A string cannot bound paths: links inside the sandbox lead anywhere in it.
		return nil, &belljar.Error{Code: belljar.CodeUnsupported, Op: "token", Message: "tokens are not bounded to paths", Hint: "leave path_prefix out"}
	}
	d, err := wire.FromDuration("ttl", req.Ttl)
	if err != nil {
		return nil, err
	}
	if d == 0 {
		d = time.Hour
	}
	base := Caller{Tenant: who.Tenant, Key: who.Key, Scopes: who.Scopes, Sandbox: sb.ID(), Ports: who.Ports}
	at := time.Now().Add(d).UTC()
	add := caveat{Scopes: req.Scopes, Ports: req.Ports, Expires: at}
	if !base.narrow(false, add) {
		return nil, bad("scopes", "beyond what the caller may do")
	}
	if err := x.s.audit(ctx, "token.create", sb.ID(), ""); err != nil {
		return nil, err
	}
	text, err := x.s.keys.mint(caveat{
		Key: base.Key, Tenant: base.Tenant, Sandbox: base.Sandbox, Scopes: base.Scopes, Ports: base.Ports, Expires: at,
	})
	return &v1.TokenResponse{Token: text, ExpiresAt: wire.Time(at)}, err
}

// Watch implements the service.
func (x sandboxes) Watch(ctx context.Context, req *v1.WatchRequest, out belljarv1connect.SandboxServiceWatchServerStream) error {
	who, err := caller(ctx, ScopeSandboxesRead)
	if err != nil {
		return err
	}
	only := who.Sandbox
	if req.Sandbox != "" {
		sb, _, err := x.s.sandbox(ctx, ScopeSandboxesRead, req.Sandbox)
		if err != nil {
			return err
		}
		only = sb.ID()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := x.s.rt.Events(ctx)
	// The caller knows by this that nothing is missed from now on.
	if err := out.Send(&v1.WatchResponse{Kind: "ready", Time: wire.Time(time.Now())}); err != nil {
		return err
	}
	for e := range events {
		if e.Kind != belljar.EventOverflow && (e.Tenant != who.Tenant || only != "" && e.Sandbox != only) {
			continue
		}
		m := &v1.WatchResponse{
			Kind: string(e.Kind), Time: wire.Time(e.Time), Sandbox: e.Sandbox, Execution: wire.Text(e.Execution),
			State: string(e.State), Cause: string(e.Cause), Reason: string(e.Reason),
		}
		if err := out.Send(m); err != nil {
			return err
		}
	}
	return ctx.Err()
}
