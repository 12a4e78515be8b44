package server_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"belljar"
	v1 "belljar/api/belljar/v1"
	"belljar/backend/fake"
	"belljar/backend/remote"
	"belljar/server"
	"belljar/server/audit"
	"belljar/server/state"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

// house is a daemon with keys, on the fake backend.
type house struct {
	t     *testing.T
	url   string
	store *state.Store
	dir   string
	log   bytes.Buffer
	admin *remote.Backend
}

func newHouse(t *testing.T) *house {
	t.Helper()
	h := &house{t: t, dir: t.TempDir()}
	rt, err := belljar.New(context.Background(), belljar.Config{}, fake.New(fake.Config{Dir: t.TempDir()}))
	if err != nil {
		t.Fatal(err)
	}
	if h.store, err = state.Open(h.dir); err != nil {
		t.Fatal(err)
	}
	trail, err := audit.Open(h.dir)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := server.NewKeys(h.store)
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Config{
		Runtime: rt, Auth: server.Local{Next: keys}, Store: h.store, Audit: trail,
		Logger: slog.New(slog.NewJSONHandler(&syncWriter{w: &h.log}, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(s.Handler())
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	h.url = srv.URL
	t.Cleanup(func() {
		srv.Close()
		for _, err := range []error{rt.Close(context.Background()), h.store.Close(), trail.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	h.admin = h.client(h.key("default", server.ScopeAll))
	return h
}

type syncWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *syncWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// key makes a key of a tenant, which is made if it is new.
func (h *house) key(tenant string, scopes ...string) string {
	h.t.Helper()
	if err := h.store.AddTenant(state.Tenant{Name: tenant}); err != nil && !errors.Is(err, belljar.ErrConflict) {
		h.t.Fatal(err)
	}
	text, k, err := server.NewKey(tenant, "test", scopes, 0, state.Quota{})
	if err != nil {
		h.t.Fatal(err)
	}
	if err := h.store.AddKey(k); err != nil {
		h.t.Fatal(err)
	}
	return text
}

func (h *house) client(key string) *remote.Backend {
	h.t.Helper()
	b, err := remote.New(remote.Config{URL: h.url, Key: key})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = b.Close(context.Background()) })
	return b
}

func (h *house) sandbox(b *remote.Backend, name string) string {
	h.t.Helper()
	fields := map[string]any{}
	if name != "" {
		fields["name"] = name
	}
	spec, err := structpb.NewStruct(fields)
	if err != nil {
		h.t.Fatal(err)
	}
	m, err := b.Sandboxes.Create(h.t.Context(), &v1.CreateSandboxRequest{Spec: spec})
	if err != nil {
		h.t.Fatal(err)
	}
	return m.Sandbox.Id
}

// TestForeign: whatever belongs to another tenant does not exist, by id and by
// name, for every call that takes a sandbox.
func TestForeign(t *testing.T) {
	h := newHouse(t)
	all := []string{server.ScopeSandboxesRead, server.ScopeSandboxesWrite, server.ScopeExec, server.ScopeFilesRead, server.ScopeFilesWrite, server.ScopePorts}
	a, b := h.client(h.key("a", all...)), h.client(h.key("b", all...))
	id := h.sandbox(a, "box")
	if _, err := a.Executions.Run(t.Context(), &v1.RunRequest{Sandbox: id, Id: "x", Command: &v1.Command{Args: []string{"echo", "hi"}}}); err != nil {
		t.Fatal(err)
	}
	calls := func(b *remote.Backend, id string) map[string]error {
		ctx := t.Context()
		out := map[string]error{}
		note := func(name string, _ any, err error) { out[name] = remote.Error(name, err) }
		m1, err := b.Sandboxes.Get(ctx, &v1.GetSandboxRequest{Sandbox: id})
		note("get", m1, err)
		m2, err := b.Sandboxes.Usage(ctx, &v1.UsageRequest{Sandbox: id})
		note("usage", m2, err)
		m3, err := b.Sandboxes.Token(ctx, &v1.TokenRequest{Sandbox: id})
		note("token", m3, err)
		m4, err := b.Executions.Run(ctx, &v1.RunRequest{Sandbox: id, Command: &v1.Command{Args: []string{"true"}}})
		note("run", m4, err)
		m5, err := b.Executions.Start(ctx, &v1.StartRequest{Sandbox: id, Command: &v1.Command{Args: []string{"true"}}})
		note("start", m5, err)
		m6, err := b.Executions.Get(ctx, &v1.GetExecutionRequest{Sandbox: id, Execution: "x"})
		note("execution", m6, err)
		m7, err := b.Executions.List(ctx, &v1.ListExecutionsRequest{Sandbox: id})
		note("executions", m7, err)
		m8, err := b.Executions.Wait(ctx, &v1.WaitRequest{Sandbox: id, Execution: "x"})
		note("wait", m8, err)
		m9, err := b.Executions.Cancel(ctx, &v1.CancelRequest{Sandbox: id, Execution: "x"})
		note("cancel", m9, err)
		m10, err := b.Files.Stat(ctx, &v1.StatFileRequest{Sandbox: id, Path: "/workspace"})
		note("stat", m10, err)
		m11, err := b.Files.List(ctx, &v1.ListFilesRequest{Sandbox: id, Path: "/"})
		note("list", m11, err)
		m12, err := b.Files.Mkdir(ctx, &v1.MkdirRequest{Sandbox: id, Path: "/workspace/d", Parents: true})
		note("mkdir", m12, err)
		s, err := b.Executions.Stream(ctx, &v1.StreamRequest{Sandbox: id, Execution: "x"})
		if err == nil {
			_, err = s.Receive()
		}
		note("stream", nil, err)
		r, err := b.Files.Read(ctx, &v1.ReadFileRequest{Sandbox: id, Path: "/workspace/none"})
		if err == nil {
			_, err = r.Receive()
		}
		if e := (*belljar.Error)(nil); errors.As(remote.Error("", err), &e) && e.Code == belljar.CodeFS {
			err = nil // the file is not there, but the sandbox is
		}
		note("read", nil, err)
		return out
	}
	for name, err := range calls(a, id) {
		if err != nil {
			t.Errorf("control: %s of one's own: %v", name, err)
		}
	}
	for _, ref := range []string{id, "box"} {
		for name, err := range calls(b, ref) {
			if !errors.Is(err, belljar.ErrNotFound) {
				t.Errorf("%s of another tenant's %s: %v", name, ref, err)
			}
		}
	}
	for name, err := range map[string]error{
		"pause":   second(b.Sandboxes.Pause(t.Context(), &v1.PauseSandboxRequest{Sandbox: id})),
		"resume":  second(b.Sandboxes.Resume(t.Context(), &v1.ResumeSandboxRequest{Sandbox: id})),
		"destroy": second(b.Sandboxes.Destroy(t.Context(), &v1.DestroySandboxRequest{Sandbox: id})),
	} {
		if err := remote.Error(name, err); !errors.Is(err, belljar.ErrNotFound) {
			t.Errorf("%s of another tenant's: %v", name, err)
		}
	}
	l, err := b.Sandboxes.List(t.Context(), &v1.ListSandboxesRequest{})
	if err != nil || len(l.Sandboxes) != 0 {
		t.Errorf("another tenant lists %v, %v", l, err)
	}
	if got := h.sandbox(b, "box"); got == id {
		t.Error("the name of another tenant's sandbox gave that sandbox")
	}
	if l, err = a.Sandboxes.List(t.Context(), &v1.ListSandboxesRequest{}); err != nil || len(l.Sandboxes) != 1 {
		t.Errorf("the owner lists %v, %v", l, err)
	}
	// Another tenant's idempotency key is no key.
	one, err := a.Sandboxes.Create(t.Context(), &v1.CreateSandboxRequest{IdempotencyKey: "k"})
	if err != nil {
		t.Fatal(err)
	}
	two, err := b.Sandboxes.Create(t.Context(), &v1.CreateSandboxRequest{IdempotencyKey: "k"})
	if err != nil || two.Sandbox.Id == one.Sandbox.Id {
		t.Errorf("%v, %v", two, err)
	}
	spec, _ := structpb.NewStruct(map[string]any{"tenant": "a"})
	if _, err := b.Sandboxes.Create(t.Context(), &v1.CreateSandboxRequest{Spec: spec}); code(err) != belljar.CodePermissionDenied {
		t.Errorf("a sandbox for another tenant: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func code(err error) belljar.Code {
	e := (*belljar.Error)(nil)
	if errors.As(remote.Error("", err), &e) {
		return e.Code
	}
	return ""
}

// TestKeys: whatever is not a valid key is refused alike, and keys are in no log.
func TestKeys(t *testing.T) {
	h := newHouse(t)
	good := h.key("a", server.ScopeSandboxesRead)
	info := func(key string) error {
		_, err := h.client(key).Host.Info(t.Context(), &v1.InfoRequest{})
		return err
	}
	if err := info(good); err != nil {
		t.Fatalf("control: %v", err)
	}
	expiredText, expired, err := server.NewKey("a", "", []string{server.ScopeExec}, time.Nanosecond, state.Quota{})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.store.AddKey(expired); err != nil {
		t.Fatal(err)
	}
	revoked := h.key("a", server.ScopeExec)
	if _, err := h.admin.Admin.RevokeKey(t.Context(), &v1.RevokeKeyRequest{Id: strings.Split(revoked, "_")[1]}); err != nil {
		t.Fatal(err)
	}
	id := strings.Split(good, "_")[1]
	var texts []string
	for name, key := range map[string]string{
		"none": "", "unknown": "bj_kaaaaaaaaaaaa_" + strings.Repeat("a", 43), "wrong": "bj_" + id + "_" + strings.Repeat("a", 43),
		"cut": good[:len(good)-1], "longer": good + "a", "only the id": "bj_" + id + "_", "other case": strings.ToUpper(good),
		"expired": expiredText, "revoked": revoked, "junk": "bj__", "token junk": "bt_AAAA",
	} {
		err := info(key)
		if code(err) != belljar.CodeUnauthenticated {
			t.Errorf("%s: %v", name, err)
			continue
		}
		texts = append(texts, err.Error())
	}
	for _, s := range texts[1:] {
		if s != texts[0] {
			t.Errorf("refusals differ: %q and %q", s, texts[0])
		}
	}
	b := h.client(good)
	if _, err := b.Sandboxes.Create(t.Context(), &v1.CreateSandboxRequest{}); code(err) != belljar.CodePermissionDenied {
		t.Errorf("beyond the scope: %v", err)
	}
	if _, err := b.Admin.ListKeys(t.Context(), &v1.ListKeysRequest{}); code(err) != belljar.CodePermissionDenied {
		t.Errorf("admin without the scope: %v", err)
	}
	for _, key := range []string{good, expiredText, revoked} {
		secret := strings.SplitN(key, "_", 3)[2]
		if strings.Contains(h.log.String(), secret) {
			t.Error("a key is in the log")
		}
	}
	if h.log.Len() == 0 {
		t.Error("control: nothing was logged")
	}
	made, err := h.admin.Admin.CreateKey(t.Context(), &v1.CreateKeyRequest{Tenant: "a", Scopes: []string{"exec"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := info(made.Text); err != nil {
		t.Errorf("a key that was made: %v", err)
	}
	for _, req := range []*v1.CreateKeyRequest{{Scopes: []string{"nonsense"}}, {}, {Tenant: "nobody", Scopes: []string{"exec"}}} {
		if _, err := h.admin.Admin.CreateKey(t.Context(), req); code(err) != belljar.CodeInvalidSpec && code(err) != belljar.CodeNotFound {
			t.Errorf("%v: %v", req, err)
		}
	}
}

// TestTokens: a token reaches one sandbox, can be narrowed by whoever has it, and
// not widened.
func TestTokens(t *testing.T) {
	h := newHouse(t)
	key := h.key("a", server.ScopeSandboxesRead, server.ScopeSandboxesWrite, server.ScopeExec)
	a := h.client(key)
	one, two := h.sandbox(a, "one"), h.sandbox(a, "two")
	made, err := a.Sandboxes.Token(t.Context(), &v1.TokenRequest{Sandbox: one, Scopes: []string{"exec", "sandboxes:read", "admin"}, Ttl: durationpb.New(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	run := func(token, id string) error {
		_, err := h.client(token).Executions.Run(t.Context(), &v1.RunRequest{Sandbox: id, Command: &v1.Command{Args: []string{"true"}}})
		return err
	}
	if err := run(made.Token, one); err != nil {
		t.Fatalf("control: %v", err)
	}
	if err := run(made.Token, two); code(err) != belljar.CodeNotFound {
		t.Errorf("another sandbox: %v", err)
	}
	tok := h.client(made.Token)
	if l, err := tok.Sandboxes.List(t.Context(), &v1.ListSandboxesRequest{}); err != nil || len(l.Sandboxes) != 1 {
		t.Errorf("a token lists %v, %v", l, err)
	}
	for name, err := range map[string]error{
		"create":           second(tok.Sandboxes.Create(t.Context(), &v1.CreateSandboxRequest{})),
		"destroy":          second(tok.Sandboxes.Destroy(t.Context(), &v1.DestroySandboxRequest{Sandbox: one})),
		"a scope too many": second(tok.Admin.ListKeys(t.Context(), &v1.ListKeysRequest{})),
	} {
		if code(err) != belljar.CodePermissionDenied {
			t.Errorf("%s by token: %v", name, err)
		}
	}
	narrow, err := server.Narrow(made.Token, "", []string{"sandboxes:read"}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if err := run(narrow, one); code(err) != belljar.CodePermissionDenied {
		t.Errorf("a narrowed token runs: %v", err)
	}
	if _, err := h.client(narrow).Sandboxes.Get(t.Context(), &v1.GetSandboxRequest{Sandbox: one}); err != nil {
		t.Errorf("control: a narrowed token reads: %v", err)
	}
	wide, _ := server.Narrow(narrow, "", []string{"exec"}, time.Time{})
	if err := run(wide, one); code(err) != belljar.CodePermissionDenied {
		t.Errorf("a widened token runs: %v", err)
	}
	other, _ := server.Narrow(made.Token, two, nil, time.Time{})
	if err := run(other, two); code(err) != belljar.CodeUnauthenticated {
		t.Errorf("a token turned to another sandbox: %v", err)
	}
	past, _ := server.Narrow(made.Token, "", nil, time.Now().Add(-time.Second))
	if err := run(past, one); code(err) != belljar.CodeUnauthenticated {
		t.Errorf("an expired token: %v", err)
	}
	for i := 3; i < len(made.Token); i += 7 {
		b := []byte(made.Token)
		b[i] ^= 1
		if err := run(string(b), one); code(err) != belljar.CodeUnauthenticated {
			t.Errorf("a token with byte %d changed: %v", i, err)
		}
	}
	// It ends with the key that it was made with.
	if err := h.store.Revoke(strings.Split(key, "_")[1]); err != nil {
		t.Fatal(err)
	}
	if err := run(made.Token, one); code(err) != belljar.CodeUnauthenticated {
		t.Errorf("a token of a revoked key: %v", err)
	}
	if _, err := a.Sandboxes.Token(t.Context(), &v1.TokenRequest{Sandbox: one}); code(err) != belljar.CodeUnauthenticated {
		t.Errorf("a token by a revoked key: %v", err)
	}
}

func TestQuotas(t *testing.T) {
	h := newHouse(t)
	a := h.client(h.key("a", server.ScopeAll))
	set := func(q *v1.Quota) {
		t.Helper()
		if _, err := h.admin.Admin.SetQuota(t.Context(), &v1.SetQuotaRequest{Tenant: "a", Quota: q}); err != nil {
			t.Fatal(err)
		}
	}
	make := func(spec map[string]any) (string, error) {
		s, err := structpb.NewStruct(spec)
		if err != nil {
			t.Fatal(err)
		}
		m, err := a.Sandboxes.Create(t.Context(), &v1.CreateSandboxRequest{Spec: s})
		return m.GetSandbox().GetId(), err
	}
	set(&v1.Quota{Sandboxes: 2, Executions: 1, Refuse: true})
	// Many at once: exactly two are made.
	var wg sync.WaitGroup
	var mu sync.Mutex
	var ids []string
	for range 10 {
		wg.Go(func() {
			id, err := make(nil)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				ids = append(ids, id)
			} else if code(err) != belljar.CodeQuotaExceeded {
				t.Errorf("beyond the quota: %v", err)
			}
		})
	}
	wg.Wait()
	if len(ids) != 2 {
		t.Fatalf("%d sandboxes under a quota of 2", len(ids))
	}
	start := func() (*v1.StartResponse, error) {
		return a.Executions.Start(t.Context(), &v1.StartRequest{Sandbox: ids[0], Command: &v1.Command{Args: []string{"sleep", "60"}}})
	}
	first, err := start()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := start(); code(err) != belljar.CodeQuotaExceeded {
		t.Errorf("a second execution: %v", err)
	}
	if _, err := a.Executions.Cancel(t.Context(), &v1.CancelRequest{Sandbox: ids[0], Execution: first.Execution.Id}); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		if _, err = start(); err == nil || time.Now().After(deadline) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		t.Errorf("after the end of the first: %v", err)
	}
	if _, err := a.Sandboxes.Destroy(t.Context(), &v1.DestroySandboxRequest{Sandbox: ids[1]}); err != nil {
		t.Fatal(err)
	}
	if _, err := make(nil); err != nil {
		t.Errorf("after a destroy: %v", err)
	}
	set(&v1.Quota{Memory: 1 << 30})
	if _, err := make(nil); code(err) != belljar.CodeQuotaExceeded {
		t.Errorf("without a memory limit under a memory quota: %v", err)
	}
	set(&v1.Quota{MaxTtl: durationpb.New(time.Minute)})
	if _, err := make(map[string]any{"ttl": "1h"}); code(err) != belljar.CodeQuotaExceeded {
		t.Errorf("a long life: %v", err)
	}
	set(&v1.Quota{RequestsPerSecond: 0.001, Burst: 3})
	refused := 0
	for range 6 {
		if _, err := a.Host.Info(t.Context(), &v1.InfoRequest{}); code(err) == belljar.CodeQuotaExceeded {
			refused++
		} else if err != nil {
			t.Errorf("%v", err)
		}
	}
	if refused != 3 {
		t.Errorf("%d of 6 refused under a burst of 3", refused)
	}
	for _, q := range []*v1.Quota{{Sandboxes: -1}, {Cpu: -1}, {Memory: -1}} {
		if _, err := h.admin.Admin.SetQuota(t.Context(), &v1.SetQuotaRequest{Tenant: "a", Quota: q}); code(err) != belljar.CodeInvalidSpec {
			t.Errorf("%v: %v", q, err)
		}
	}
	if rep, err := audit.Verify(h.dir); err != nil || rep.Broken() || rep.Entries == 0 {
		t.Errorf("audit: %+v, %v", rep, err)
	}
}

func TestIdempotency(t *testing.T) {
	h := newHouse(t)
	spec, _ := structpb.NewStruct(map[string]any{"labels": map[string]any{"a": "b"}})
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids := map[string]int{}
	for range 20 {
		wg.Go(func() {
			m, err := h.admin.Sandboxes.Create(t.Context(), &v1.CreateSandboxRequest{Spec: spec, IdempotencyKey: "once"})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			ids[m.GetSandbox().GetId()]++
		})
	}
	wg.Wait()
	if len(ids) != 1 {
		t.Errorf("one key made %d sandboxes", len(ids))
	}
	if _, err := h.admin.Sandboxes.Create(t.Context(), &v1.CreateSandboxRequest{IdempotencyKey: "once"}); code(err) != belljar.CodeConflict {
		t.Errorf("the key with another spec: %v", err)
	}
	l, err := h.admin.Sandboxes.List(t.Context(), &v1.ListSandboxesRequest{Labels: map[string]string{"a": "b"}})
	if err != nil || len(l.Sandboxes) != 1 {
		t.Errorf("%v, %v", l, err)
	}
	for range 5 {
		h.sandbox(h.admin, "")
	}
	seen := map[string]bool{}
	for cursor := ""; ; {
		l, err := h.admin.Sandboxes.List(t.Context(), &v1.ListSandboxesRequest{PageSize: 2, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range l.Sandboxes {
			if seen[sb.Id] {
				t.Errorf("%s twice", sb.Id)
			}
			seen[sb.Id] = true
		}
		if cursor = l.NextCursor; cursor == "" {
			break
		}
	}
	if len(seen) != 6 {
		t.Errorf("%d sandboxes in pages", len(seen))
	}
}

// TestWatch: a tenant sees what happens to its own, and nothing else.
func TestWatch(t *testing.T) {
	h := newHouse(t)
	a, b := h.client(h.key("a", server.ScopeAll)), h.client(h.key("b", server.ScopeAll))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := a.Sandboxes.Watch(ctx, &v1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	next := func() *v1.WatchResponse {
		t.Helper()
		m, err := s.Receive()
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if m := next(); m.Kind != "ready" {
		t.Fatalf("%v", m)
	}
	h.sandbox(b, "theirs")
	id := h.sandbox(a, "mine")
	if _, err := a.Executions.Run(ctx, &v1.RunRequest{Sandbox: id, Command: &v1.Command{Args: []string{"true"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Sandboxes.Destroy(ctx, &v1.DestroySandboxRequest{Sandbox: id}); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"sandbox.created", "execution.started", "execution.ended", "sandbox.ended"} {
		if m := next(); m.Kind != kind || m.Sandbox != id {
			t.Errorf("%v instead of %s", m, kind)
		}
	}
	theirs, err := b.Sandboxes.Watch(ctx, &v1.WatchRequest{Sandbox: "mine"})
	if err == nil {
		_, err = theirs.Receive()
	}
	if code(err) != belljar.CodeNotFound {
		t.Errorf("watching another tenant's: %v", err)
	}
}
