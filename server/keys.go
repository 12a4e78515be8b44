package server

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"belljar"
	"belljar/server/state"
)

// Forms of what a caller shows.
const (
	keyPrefix   = "bj_" // bj_<id>_<secret>
	tokenPrefix = "bt_" // bt_<base64 of a token>
)

// Keys lets in callers with API keys and access tokens, and with client
// certificates whose common name is a tenant.
//
// A key's secret is 256 random bits, of which only the SHA-256 is stored: there
// is no dictionary of such secrets that a slow hash would have to guard against.
type Keys struct {
	store  *state.Store
	secret []byte
}

// NewKeys makes the authenticator of a store.
func NewKeys(s *state.Store) (*Keys, error) {
	secret, err := s.Secret()
	if err != nil {
		return nil, err
	}
	return &Keys{store: s, secret: secret}, nil
}

// NewKey makes an API key: its text, which is nowhere afterwards, and what is stored.
func NewKey(tenant, name string, scopes []string, ttl time.Duration, q state.Quota) (text string, k state.Key, err error) {
	for _, s := range scopes {
		if !slices.Contains(allScopes, s) {
			return "", k, bad("scopes", fmt.Sprintf("no scope %.40q; there are %s", s, strings.Join(allScopes, ", ")))
		}
	}
	if len(scopes) == 0 {
		return "", k, bad("scopes", "none; there are "+strings.Join(allScopes, ", "))
	}
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // never fails
	s := base64.RawURLEncoding.EncodeToString(secret[:])
	sum := sha256.Sum256([]byte(s))
	k = state.Key{
		ID: "k" + strings.ToLower(rand.Text())[:12], Tenant: tenant, Name: name, Hash: sum[:], Scopes: scopes, Quota: q, Created: time.Now(),
	}
	if ttl > 0 {
		k.Expires = k.Created.Add(ttl)
	}
	return keyPrefix + k.ID + "_" + s, k, nil
}

var allScopes = []string{
	ScopeAll, ScopeSandboxesRead, ScopeSandboxesWrite, ScopeExec, ScopeFilesRead, ScopeFilesWrite, ScopePorts, ScopeAdmin,
}

// refused is the same for whatever was wrong: unknown, wrong, expired or revoked.
func refused() error {
	return &belljar.Error{Code: belljar.CodeUnauthenticated, Op: "request", Message: "the key is not valid", Hint: "send Authorization: Bearer <key>"}
}

// Authenticate implements [Authenticator].
func (a *Keys) Authenticate(_ context.Context, h http.Header, conn Conn) (Caller, error) {
	text, ok := strings.CutPrefix(h.Get("Authorization"), "Bearer ")
	if !ok {
		text = h.Get("X-Api-Key")
	}
	switch {
	case strings.HasPrefix(text, keyPrefix):
		return a.key(text)
	case strings.HasPrefix(text, tokenPrefix):
		return a.token(text)
	case text == "" && conn.TLS != nil && len(conn.TLS.VerifiedChains) > 0:
		name := conn.TLS.VerifiedChains[0][0].Subject.CommonName
		if t, err := a.store.Tenant(name); err == nil {
			return Caller{Tenant: t.Name, Key: "cert:" + name, Scopes: []string{ScopeSandboxesRead, ScopeSandboxesWrite, ScopeExec, ScopeFilesRead, ScopeFilesWrite, ScopePorts}, Quota: t.Quota}, nil
		}
	}
	return Caller{}, refused()
}

// key checks an API key. An unknown id costs the same comparison as a known one.
func (a *Keys) key(text string) (Caller, error) {
	id, secret, _ := strings.Cut(strings.TrimPrefix(text, keyPrefix), "_")
	k, known, err := a.store.Key(id)
	if err != nil {
		return Caller{}, err
	}
	sum := sha256.Sum256([]byte(secret))
	want := k.Hash
	if !known {
		want = make([]byte, sha256.Size)
	}
	same := subtle.ConstantTimeCompare(sum[:], want) == 1
	if !same || !known || k.Revoked || !k.Expires.IsZero() && time.Now().After(k.Expires) {
		return Caller{}, refused()
	}
	return Caller{Tenant: k.Tenant, Key: k.ID, Scopes: k.Scopes, Quota: k.Quota}, nil
}

// caveat narrows a token. Everything that is set bounds; nothing widens.
type caveat struct {
	Key     string    `json:"k,omitempty"` // the key that it was made with: it ends with that
	Tenant  string    `json:"t,omitempty"`
	Sandbox string    `json:"s,omitempty"`
	Scopes  []string  `json:"c,omitempty"`
	Ports   []uint32  `json:"o,omitempty"`
	Expires time.Time `json:"e,omitzero"`
}

// token is a chain of caveats. Each signature is the HMAC-SHA-256 of its caveat
// under the one before, the first under the daemon's secret, and only the last is
// in the token: whoever holds one can add a caveat and take none away, without
// asking the daemon (Birgisson et al., Macaroons, NDSS 2014).
type token struct {
	Caveats []json.RawMessage `json:"c"`
	Sig     []byte            `json:"s"`
}

const (
	maxCaveats = 16
	maxToken   = 8 << 10
)

func sign(key []byte, caveats []json.RawMessage) []byte {
	for _, c := range caveats {
		m := hmac.New(sha256.New, key)
		m.Write([]byte("belljar token v1\x00"))
		m.Write(c)
		key = m.Sum(nil)
	}
	return key
}

// mint makes a token.
func (a *Keys) mint(c caveat) (string, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	return encodeToken(token{Caveats: []json.RawMessage{b}, Sig: sign(a.secret, []json.RawMessage{b})})
}

func encodeToken(t token) (string, error) {
	b, err := json.Marshal(t)
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b), err
}

func decodeToken(text string) (t token, err error) {
	if len(text) > maxToken {
		return t, refused()
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(strings.TrimPrefix(text, tokenPrefix))
	if err != nil || json.Unmarshal(b, &t) != nil || len(t.Caveats) == 0 || len(t.Caveats) > maxCaveats {
		return t, refused()
	}
	return t, nil
}

// Narrow adds a caveat to a token, here or wherever the token is.
func Narrow(text, sandbox string, scopes []string, expires time.Time) (string, error) {
	t, err := decodeToken(text)
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(caveat{Sandbox: sandbox, Scopes: scopes, Expires: expires})
	if err != nil {
		return "", err
	}
	t.Caveats = append(t.Caveats, b)
	t.Sig = sign(t.Sig, t.Caveats[len(t.Caveats)-1:])
	return encodeToken(t)
}

func (a *Keys) token(text string) (Caller, error) {
	t, err := decodeToken(text)
	if err != nil {
		return Caller{}, err
	}
	if !hmac.Equal(sign(a.secret, t.Caveats), t.Sig) {
		return Caller{}, refused()
	}
	var who Caller
	for i, raw := range t.Caveats {
		var c caveat
		if strictly(raw, &c) != nil || !who.narrow(i == 0, c) {
			return Caller{}, refused()
		}
	}
	if who.Tenant == "" || who.Sandbox == "" {
		return Caller{}, refused()
	}
	if who.Key != "" {
		k, known, err := a.store.Key(who.Key)
		if err != nil {
			return Caller{}, err
		}
		if !known || k.Revoked || !k.Expires.IsZero() && time.Now().After(k.Expires) {
			return Caller{}, refused()
		}
		who.Quota = k.Quota
	}
	return who, nil
}

// strictly refuses a caveat of a kind that this daemon does not know: what it
// cannot keep must not be taken for nothing.
func strictly(raw []byte, c *caveat) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	return d.Decode(c)
}

// narrow applies a caveat; false: it contradicts what there is, or has passed.
func (c *Caller) narrow(first bool, v caveat) bool {
	if !v.Expires.IsZero() && time.Now().After(v.Expires) {
		return false
	}
	if first {
		*c = Caller{Tenant: v.Tenant, Key: v.Key, Scopes: v.Scopes, Sandbox: v.Sandbox, Ports: v.Ports}
		return true
	}
	if v.Sandbox != "" && v.Sandbox != c.Sandbox || v.Tenant != "" && v.Tenant != c.Tenant {
		return false
	}
	if v.Scopes != nil {
		var both []string
		for _, s := range v.Scopes {
			if c.May(s) {
				both = append(both, s)
			}
		}
		c.Scopes = both
	}
	if v.Ports != nil {
		if c.Ports == nil {
			c.Ports = v.Ports
		} else {
			c.Ports = slices.DeleteFunc(slices.Clone(c.Ports), func(p uint32) bool { return !slices.Contains(v.Ports, p) })
		}
	}
	return true
}
