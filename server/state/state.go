// Package state keeps what the daemon has to know after a restart and that is in
// no sandbox's directory: tenants, keys, quotas, idempotency keys, and the secret
// that tokens are signed with. It is one bbolt file; every change is on disk when
// the call returns. It knows nothing of requests.
package state

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"belljar"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

const version = 1

var (
	bucketMeta    = []byte("meta")
	bucketTenants = []byte("tenants")
	bucketKeys    = []byte("keys")
	bucketCreates = []byte("creates")
	keyVersion    = []byte("version")
	keySecret     = []byte("secret")
)

// Quota bounds what a tenant or the user of a key may have. 0: no bound.
type Quota struct {
	Sandboxes  int     `json:"sandboxes,omitempty"`
	Executions int     `json:"executions,omitempty"` // at once
	CPU        float64 `json:"cpu,omitempty"`        // cores, sum of limits
	Memory     int64   `json:"memory,omitempty"`     // bytes, sum of limits
	Disk       int64   `json:"disk,omitempty"`       // bytes, sum of limits
	Rate       float64 `json:"rate,omitempty"`       // requests a second
	Burst      int     `json:"burst,omitempty"`      // default: a second's worth
	Refuse     bool    `json:"refuse,omitempty"`     // executions beyond the bound are refused, not queued
	// MaxTTL bounds the lifetime of sandboxes.
	MaxTTL time.Duration `json:"maxTTL,omitempty"`
}

// Tenant owns sandboxes and keys.
type Tenant struct {
	Name    string    `json:"name"`
	Quota   Quota     `json:"quota"`
	Created time.Time `json:"created"`
}

// Key is what is known of an API key: not the key.
type Key struct {
	ID      string    `json:"id"`
	Tenant  string    `json:"tenant"`
	Name    string    `json:"name,omitempty"`
	Hash    []byte    `json:"hash"` // SHA-256 of the secret part
	Scopes  []string  `json:"scopes"`
	Quota   Quota     `json:"quota"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"`
	Revoked bool      `json:"revoked,omitempty"`
}

// Create is what an idempotency key made.
type Create struct {
	Sum     []byte    `json:"sum"` // of the request
	Sandbox string    `json:"sandbox"`
	At      time.Time `json:"at"`
}

// Store is an open state file. It is safe for concurrent use.
type Store struct{ db *bolt.DB }

// Open opens or makes the file state.db of a directory that only this user can
// enter. A file that another process has open is UNAVAILABLE at once; one that is
// damaged stays as it is, and the error says how to go on without it.
func Open(dir string) (*Store, error) {
	name := filepath.Join(dir, "state.db")
	fail := func(err error, hint string) (*Store, error) {
		return nil, &belljar.Error{Code: belljar.CodeUnavailable, Op: "open " + name, Message: err.Error(), Err: err, Hint: hint}
	}
	fi, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fail(err, "")
	case !fi.Mode().IsRegular() || fi.Mode().Perm()&0o077 != 0:
		return fail(errors.New("not a regular file that only its owner can read"), "look who made it")
	}
	db, err := open(name)
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return fail(errors.New("another daemon has it open"), "stop that one, or name another state directory")
	case err != nil:
		return fail(err, "restore a copy, or move the file away: keys and tenants are then made anew")
	}
	s := &Store{db}
	if err := s.prepare(); err != nil {
		return fail(errors.Join(err, db.Close()), "restore a copy, or move the file away: keys and tenants are then made anew")
	}
	return s, nil
}

// open turns the panics that damaged pages cause into errors.
func open(name string) (db *bolt.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			db, err = nil, fmt.Errorf("damaged: %v", p)
		}
	}()
	return bolt.Open(name, 0o600, &bolt.Options{Timeout: 100 * time.Millisecond})
}

func (s *Store) prepare() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("damaged: %v", p)
		}
	}()
	return s.db.Update(func(tx *bolt.Tx) error {
		for _, b := range [][]byte{bucketMeta, bucketTenants, bucketKeys, bucketCreates} {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		meta := tx.Bucket(bucketMeta)
		if v := meta.Get(keyVersion); v != nil && string(v) != fmt.Sprint(version) {
			return fmt.Errorf("written by a newer daemon: version %.10s", v)
		}
		if err := meta.Put(keyVersion, []byte(fmt.Sprint(version))); err != nil {
			return err
		}
		if meta.Get(keySecret) == nil {
			secret := make([]byte, 32)
			_, _ = rand.Read(secret) // never fails
			if err := meta.Put(keySecret, secret); err != nil {
				return err
			}
		}
		if tx.Bucket(bucketTenants).Get([]byte("default")) == nil {
			return put(tx, bucketTenants, "default", Tenant{Name: "default", Created: time.Now()})
		}
		return nil
	})
}

// Close closes the file.
func (s *Store) Close() error { return s.db.Close() }

// Secret is what tokens are signed with; it stays the same over restarts.
func (s *Store) Secret() ([]byte, error) {
	var secret []byte
	err := s.db.View(func(tx *bolt.Tx) error {
		secret = append(secret, tx.Bucket(bucketMeta).Get(keySecret)...)
		return nil
	})
	return secret, err
}

func put(tx *bolt.Tx, bucket []byte, key string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return tx.Bucket(bucket).Put([]byte(key), b)
}

func get[T any](s *Store, bucket []byte, key string) (v T, ok bool, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucket).Get([]byte(key))
		if b == nil {
			return nil
		}
		ok = true
		return json.Unmarshal(b, &v)
	})
	return v, ok, err
}

func all[T any](s *Store, bucket []byte) (vs []T, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(bucket).ForEach(func(_, b []byte) error {
			var v T
			if err := json.Unmarshal(b, &v); err != nil {
				return err
			}
			vs = append(vs, v)
			return nil
		})
	})
	return vs, err
}

func notFound(op, what string) error {
	return &belljar.Error{Code: belljar.CodeNotFound, Op: op, Message: "no " + what}
}

// AddTenant enters a tenant; one of that name is CONFLICT.
func (s *Store) AddTenant(t Tenant) error {
	if !validTenant(t.Name) {
		return &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "create tenant", Message: "not a name", Hint: "1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"}
	}
	return s.db.Update(func(tx *bolt.Tx) error {
		if tx.Bucket(bucketTenants).Get([]byte(t.Name)) != nil {
			return &belljar.Error{Code: belljar.CodeConflict, Op: "create tenant", Message: fmt.Sprintf("a tenant %q exists", t.Name)}
		}
		return put(tx, bucketTenants, t.Name, t)
	})
}

func validTenant(s string) bool {
	return len(s) > 0 && len(s) <= 63 && s[0] != '-' && s[len(s)-1] != '-' &&
		!strings.ContainsFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' })
}

// Tenant returns a tenant.
func (s *Store) Tenant(name string) (Tenant, error) {
	t, ok, err := get[Tenant](s, bucketTenants, name)
	if err == nil && !ok {
		err = notFound("get tenant", "such tenant")
	}
	return t, err
}

// Tenants returns all, by name.
func (s *Store) Tenants() ([]Tenant, error) { return all[Tenant](s, bucketTenants) }

// SetTenantQuota replaces a tenant's quota.
func (s *Store) SetTenantQuota(name string, q Quota) error {
	return change(s, bucketTenants, name, "tenant", func(t *Tenant) { t.Quota = q })
}

// RemoveTenant removes a tenant and its keys.
func (s *Store) RemoveTenant(name string) error {
	if name == "default" {
		return &belljar.Error{Code: belljar.CodeConflict, Op: "delete tenant", Message: "the default tenant stays"}
	}
	return s.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketTenants)
		if b.Get([]byte(name)) == nil {
			return notFound("delete tenant", "such tenant")
		}
		keys := tx.Bucket(bucketKeys)
		var gone [][]byte
		err := keys.ForEach(func(id, v []byte) error {
			var k Key
			if err := json.Unmarshal(v, &k); err != nil {
				return err
			}
			if k.Tenant == name {
				gone = append(gone, append([]byte(nil), id...))
			}
			return nil
		})
		for _, id := range gone {
			err = errors.Join(err, keys.Delete(id))
		}
		return errors.Join(err, b.Delete([]byte(name)))
	})
}

func change[T any](s *Store, bucket []byte, key, what string, f func(*T)) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucket).Get([]byte(key))
		if b == nil {
			return notFound("change "+what, "such "+what)
		}
		var v T
		if err := json.Unmarshal(b, &v); err != nil {
			return err
		}
		f(&v)
		return put(tx, bucket, key, v)
	})
}

// AddKey enters a key of a tenant that exists.
func (s *Store) AddKey(k Key) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		if tx.Bucket(bucketTenants).Get([]byte(k.Tenant)) == nil {
			return notFound("create key", "such tenant")
		}
		return put(tx, bucketKeys, k.ID, k)
	})
}

// Key returns a key; unknown ones are no error.
func (s *Store) Key(id string) (Key, bool, error) { return get[Key](s, bucketKeys, id) }

// Keys returns those of a tenant, or all.
func (s *Store) Keys(tenant string) ([]Key, error) {
	keys, err := all[Key](s, bucketKeys)
	var mine []Key
	for _, k := range keys {
		if tenant == "" || k.Tenant == tenant {
			mine = append(mine, k)
		}
	}
	return mine, err
}

// Revoke ends a key at once.
func (s *Store) Revoke(id string) error {
	return change(s, bucketKeys, id, "key", func(k *Key) { k.Revoked = true })
}

// SetKeyQuota replaces a key's quota.
func (s *Store) SetKeyQuota(id string, q Quota) error {
	return change(s, bucketKeys, id, "key", func(k *Key) { k.Quota = q })
}

func createName(tenant, key string) string { return tenant + "\x00" + key }

// Create returns what an idempotency key of a tenant made.
func (s *Store) Create(tenant, key string) (Create, bool, error) {
	return get[Create](s, bucketCreates, createName(tenant, key))
}

// PutCreate remembers what an idempotency key made, and forgets those made before
// the given time.
func (s *Store) PutCreate(tenant, key string, c Create, before time.Time) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketCreates)
		var old [][]byte
		err := b.ForEach(func(k, v []byte) error {
			var c Create
			if json.Unmarshal(v, &c) != nil || c.At.Before(before) {
				old = append(old, append([]byte(nil), k...))
			}
			return nil
		})
		for _, k := range old {
			err = errors.Join(err, b.Delete(k))
		}
		return errors.Join(err, put(tx, bucketCreates, createName(tenant, key), c))
	})
}
