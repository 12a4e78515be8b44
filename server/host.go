package server

import (
	"context"

	"belljar"
	v1 "belljar/api/belljar/v1"
	"belljar/api/belljar/v1/belljarv1connect"
	"belljar/internal/wire"
)

// host implements the HostService.
type host struct {
	belljarv1connect.UnimplementedHostServiceHandler
	s *Server
}

// Info implements the service.
func (x host) Info(ctx context.Context, _ *v1.InfoRequest) (*v1.InfoResponse, error) {
	who, err := anybody(ctx)
	if err != nil {
		return nil, err
	}
	m := &v1.InfoResponse{
		Version: x.s.cfg.Version, SpecVersion: belljar.SpecVersion, StartedAt: wire.Time(x.s.started),
		Tenant: who.Tenant, Scopes: who.Scopes, Draining: x.s.draining.Load(),
	}
	for _, sb := range x.s.rt.List() {
		if sb.Tenant() == who.Tenant {
			m.Sandboxes++
			m.Executions += int32(len(sb.Executions()))
		}
	}
	return m, nil
}

// Capabilities implements the service.
func (x host) Capabilities(ctx context.Context, _ *v1.CapabilitiesRequest) (*v1.CapabilitiesResponse, error) {
	if _, err := anybody(ctx); err != nil {
		return nil, err
	}
	probes, err := x.s.rt.Probe(ctx)
	if err != nil {
		return nil, err
	}
	m := &v1.CapabilitiesResponse{}
	for _, p := range probes {
		b := &v1.BackendCapabilities{Backend: p.Backend, Host: p.Host}
		for _, l := range p.Layers {
			b.Layers = append(b.Layers, wire.Layer(l))
		}
		for _, c := range p.Capabilities {
			b.Capabilities = append(b.Capabilities, &v1.Capability{Name: c.Name, Support: string(c.Support), Reason: c.Reason, Remedy: c.Remedy, Evidence: c.Evidence})
		}
		m.Backends = append(m.Backends, b)
	}
	return m, nil
}
