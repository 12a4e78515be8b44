package server

import (
	"context"
	"fmt"
	"time"

	"belljar"
	v1 "belljar/api/belljar/v1"
	"belljar/api/belljar/v1/belljarv1connect"
	"belljar/internal/wire"
	"belljar/server/state"
)

// admin implements the AdminService.
type admin struct {
	belljarv1connect.UnimplementedAdminServiceHandler
	s *Server
}

func (x admin) store(ctx context.Context, act, object string) (*state.Store, error) {
	if _, err := caller(ctx, ScopeAdmin); err != nil {
		return nil, err
	}
	if x.s.cfg.Store == nil {
		return nil, &belljar.Error{Code: belljar.CodeUnsupported, Op: "admin", Message: "this daemon keeps no tenants and keys"}
	}
	return x.s.cfg.Store, x.s.audit(ctx, act, object, "")
}

func quota(m *v1.Quota) (state.Quota, error) {
	if m == nil {
		return state.Quota{}, nil
	}
	q := state.Quota{
		Sandboxes: int(m.Sandboxes), Executions: int(m.Executions), CPU: m.Cpu, Memory: m.Memory, Disk: m.Disk,
		Rate: m.RequestsPerSecond, Burst: int(m.Burst), Refuse: m.Refuse,
	}
	var err error
	if q.MaxTTL, err = wire.FromDuration("quota.max_ttl", m.MaxTtl); err != nil {
		return q, err
	}
	if q.Sandboxes < 0 || q.Executions < 0 || !(q.CPU >= 0) || q.Memory < 0 || q.Disk < 0 || !(q.Rate >= 0) || q.Burst < 0 {
		return q, bad("quota", "negative, or not a number")
	}
	return q, nil
}

func quotaMessage(q state.Quota) *v1.Quota {
	return &v1.Quota{
		Sandboxes: int32(q.Sandboxes), Executions: int32(q.Executions), Cpu: q.CPU, Memory: q.Memory, Disk: q.Disk,
		RequestsPerSecond: q.Rate, Burst: int32(q.Burst), Refuse: q.Refuse, MaxTtl: wire.Duration(q.MaxTTL),
	}
}

func tenantMessage(t state.Tenant) *v1.Tenant {
	return &v1.Tenant{Name: t.Name, Quota: quotaMessage(t.Quota), CreatedAt: wire.Time(t.Created)}
}

func keyMessage(k state.Key) *v1.Key {
	return &v1.Key{
		Id: k.ID, Tenant: k.Tenant, Name: k.Name, Scopes: k.Scopes, CreatedAt: wire.Time(k.Created), ExpiresAt: wire.Time(k.Expires), Revoked: k.Revoked,
	}
}

// CreateTenant implements the service.
func (x admin) CreateTenant(ctx context.Context, req *v1.CreateTenantRequest) (*v1.CreateTenantResponse, error) {
	st, err := x.store(ctx, "tenant.create", req.Name)
	if err != nil {
		return nil, err
	}
	q, err := quota(req.Quota)
	if err != nil {
		return nil, err
	}
	t := state.Tenant{Name: req.Name, Quota: q, Created: time.Now()}
	if err := st.AddTenant(t); err != nil {
		return nil, err
	}
	return &v1.CreateTenantResponse{Tenant: tenantMessage(t)}, nil
}

// ListTenants implements the service.
func (x admin) ListTenants(ctx context.Context, _ *v1.ListTenantsRequest) (*v1.ListTenantsResponse, error) {
	st, err := x.store(ctx, "tenant.list", "")
	if err != nil {
		return nil, err
	}
	ts, err := st.Tenants()
	m := &v1.ListTenantsResponse{}
	for _, t := range ts {
		m.Tenants = append(m.Tenants, tenantMessage(t))
	}
	return m, err
}

// SetQuota implements the service.
func (x admin) SetQuota(ctx context.Context, req *v1.SetQuotaRequest) (*v1.SetQuotaResponse, error) {
	st, err := x.store(ctx, "quota.set", req.Tenant+req.Key)
	if err != nil {
		return nil, err
	}
	q, err := quota(req.Quota)
	if err != nil {
		return nil, err
	}
	if (req.Tenant == "") == (req.Key == "") {
		return nil, bad("tenant", "a tenant or a key is needed, not both")
	}
	if req.Key != "" {
		return &v1.SetQuotaResponse{}, st.SetKeyQuota(req.Key, q)
	}
	return &v1.SetQuotaResponse{}, st.SetTenantQuota(req.Tenant, q)
}

// DeleteTenant implements the service.
func (x admin) DeleteTenant(ctx context.Context, req *v1.DeleteTenantRequest) (*v1.DeleteTenantResponse, error) {
	st, err := x.store(ctx, "tenant.delete", req.Name)
	if err != nil {
		return nil, err
	}
	for _, sb := range x.s.rt.List() {
		if sb.Tenant() == req.Name {
			return nil, &belljar.Error{Code: belljar.CodeConflict, Op: "delete tenant", Message: fmt.Sprintf("the tenant has sandboxes, such as %s", sb.ID()), Hint: "destroy them first"}
		}
	}
	return &v1.DeleteTenantResponse{}, st.RemoveTenant(req.Name)
}

// CreateKey implements the service.
func (x admin) CreateKey(ctx context.Context, req *v1.CreateKeyRequest) (*v1.CreateKeyResponse, error) {
	tenant := req.Tenant
	if tenant == "" {
		tenant = "default"
	}
	st, err := x.store(ctx, "key.create", tenant)
	if err != nil {
		return nil, err
	}
	q, err := quota(req.Quota)
	if err != nil {
		return nil, err
	}
	ttl, err := wire.FromDuration("ttl", req.Ttl)
	if err != nil {
		return nil, err
	}
	text, k, err := NewKey(tenant, req.Name, req.Scopes, ttl, q)
	if err != nil {
		return nil, err
	}
	if err := st.AddKey(k); err != nil {
		return nil, err
	}
	return &v1.CreateKeyResponse{Key: keyMessage(k), Text: text}, nil
}

// ListKeys implements the service.
func (x admin) ListKeys(ctx context.Context, req *v1.ListKeysRequest) (*v1.ListKeysResponse, error) {
	st, err := x.store(ctx, "key.list", req.Tenant)
	if err != nil {
		return nil, err
	}
	ks, err := st.Keys(req.Tenant)
	m := &v1.ListKeysResponse{}
	for _, k := range ks {
		m.Keys = append(m.Keys, keyMessage(k))
	}
	return m, err
}

// RevokeKey implements the service.
func (x admin) RevokeKey(ctx context.Context, req *v1.RevokeKeyRequest) (*v1.RevokeKeyResponse, error) {
	st, err := x.store(ctx, "key.revoke", req.Id)
	if err != nil {
		return nil, err
	}
	return &v1.RevokeKeyResponse{}, st.Revoke(req.Id)
}

// Drain implements the service.
func (x admin) Drain(ctx context.Context, req *v1.DrainRequest) (*v1.DrainResponse, error) {
	if _, err := caller(ctx, ScopeAdmin); err != nil {
		return nil, err
	}
	if err := x.s.audit(ctx, "drain", "", ""); err != nil {
		return nil, err
	}
	d, err := wire.FromDuration("timeout", req.Timeout)
	if err != nil {
		return nil, err
	}
	x.s.draining.Store(true)
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for _, sb := range x.s.rt.List() {
		for _, id := range sb.Executions() {
			c, err := sb.Attach(id)
			if err != nil || c.Start(ctx) != nil {
				continue // it ended meanwhile
			}
			select {
			case <-c.Done():
			case <-ctx.Done():
			}
		}
	}
	m := &v1.DrainResponse{}
	for _, sb := range x.s.rt.List() {
		if req.EndSandboxes {
			if err := sb.Destroy(context.WithoutCancel(ctx)); err == nil {
				continue
			}
		}
		m.Sandboxes++
		m.Executions += int32(len(sb.Executions()))
	}
	return m, nil
}

// GC implements the service.
func (x admin) GC(ctx context.Context, _ *v1.GCRequest) (*v1.GCResponse, error) {
	if _, err := caller(ctx, ScopeAdmin); err != nil {
		return nil, err
	}
	if err := x.s.audit(ctx, "gc", "", ""); err != nil {
		return nil, err
	}
	out, err := x.s.rt.GC(ctx)
	m := &v1.GCResponse{Removed: out.Removed}
	for id, why := range out.Skipped {
		m.Failed = append(m.Failed, id+": "+why)
	}
	if len(m.Failed) > 0 {
		err = nil // it is in the answer
	}
	return m, err
}
