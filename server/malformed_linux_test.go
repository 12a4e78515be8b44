package server_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"belljar"
	v1 "belljar/api/belljar/v1"
	"belljar/server"
)

// TestMalformed: what is no request is refused with a 4xx, on every unary
// procedure, in bounded time, and the daemon goes on.
func TestMalformed(t *testing.T) {
	h := newHouse(t)
	key := h.key("default", server.ScopeAll)
	deep := `{"spec":` + strings.Repeat(`{"a":`, 20000) + `1` + strings.Repeat(`}`, 20000) + `}`
	var bomb bytes.Buffer
	zw := gzip.NewWriter(&bomb)
	zeros := make([]byte, 1<<20)
	for range 64 {
		if _, err := zw.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	bodies := []struct {
		name, kind, encoding string
		body                 []byte
	}{
		{"not JSON", "application/json", "", []byte("{")},
		{"not an object", "application/json", "", []byte(`[1,2]`)},
		{"an unknown field", "application/json", "", []byte(`{"noSuchField":1}`)},
		{"invalid UTF-8", "application/json", "", []byte("{\"sandbox\":\"\xff\"}")},
		{"deep", "application/json", "", []byte(deep)},
		{"large", "application/json", "", append(append([]byte(`{"sandbox":"`), bytes.Repeat([]byte("a"), 9<<20)...), `"}`...)},
		{"a bomb", "application/json", "gzip", bomb.Bytes()},
		{"not protobuf", "application/proto", "", []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
		{"a huge length", "application/proto", "", []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}},
		{"an unknown encoding", "application/json", "br", []byte(`{}`)},
	}
	services := v1.File_belljar_v1_belljar_proto.Services()
	tried := 0
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			m := methods.Get(j)
			if m.IsStreamingClient() || m.IsStreamingServer() {
				continue
			}
			url := fmt.Sprintf("%s/%s/%s", h.url, services.Get(i).FullName(), m.Name())
			for _, b := range bodies {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(b.body))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", b.kind)
				req.Header.Set("Authorization", "Bearer "+key)
				if b.encoding != "" {
					req.Header.Set("Content-Encoding", b.encoding)
				}
				start := time.Now()
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Errorf("%s with %s: %v", m.FullName(), b.name, err)
					continue
				}
				text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
				resp.Body.Close()
				tried++
				// 501: a procedure that is not built, or an encoding that is not known.
				if (resp.StatusCode < 400 || resp.StatusCode >= 500) && resp.StatusCode != http.StatusNotImplemented {
					t.Errorf("%s with %s: %s %.200s", m.FullName(), b.name, resp.Status, text)
				}
				if len(text) > 64<<10 || time.Since(start) > 10*time.Second {
					t.Errorf("%s with %s: an answer of %d bytes after %v", m.FullName(), b.name, len(text), time.Since(start))
				}
			}
		}
	}
	if tried < 200 {
		t.Errorf("only %d requests", tried)
	}
	h.sandbox(h.admin, "still-works")
}

// TestSlowHeaders: a client that does not finish its headers is hung up on.
func TestSlowHeaders(t *testing.T) {
	if testing.Short() {
		t.Skip("takes the ten seconds of the limit")
	}
	url, _ := near(t, belljar.Config{})
	c, err := net.Dial("unix", strings.TrimPrefix(url, "unix://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if err != nil {
		t.Errorf("it was not hung up on: %v, after %q", err, b)
	}
}
