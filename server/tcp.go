package server

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"

	"belljar"
)

// TLS says where the certificate of a TCP listener is.
type TLS struct {
	Cert, Key string // PEM files
	// ClientCA, when set, holds the authorities of client certificates, which are
	// then demanded.
	ClientCA string
}

// ListenTCP listens on a TCP address. Without TLS it refuses addresses beyond
// loopback unless plain says that keys may go over the wire in the clear.
func ListenTCP(addr string, t TLS, plain bool) (net.Listener, error) {
	op := "listen " + addr
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: op, Message: err.Error(), Err: err, Hint: "write host:port"}
	}
	var cfg *tls.Config
	switch {
	case (t.Cert == "") != (t.Key == ""):
		return nil, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: op, Message: "certificate and key go together"}
	case t.Cert != "":
		if cfg, err = t.config(); err != nil {
			return nil, err
		}
	case t.ClientCA != "":
		return nil, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: op, Message: "client certificates need TLS", Hint: "give a certificate and a key"}
	case !plain && !a.IP.IsLoopback():
		return nil, &belljar.Error{
			Code: belljar.CodePermissionDenied, Op: op, Message: "without TLS only loopback is served: keys and output would be readable on the wire",
			Hint: "give a certificate and a key, or listen on 127.0.0.1",
		}
	}
	l, err := net.ListenTCP("tcp", a)
	if err != nil {
		return nil, &belljar.Error{Code: belljar.CodeUnavailable, Op: op, Message: err.Error(), Err: err, Hint: "is the port taken?"}
	}
	if cfg != nil {
		return tls.NewListener(l, cfg), nil
	}
	return l, nil
}

func (t TLS) config() (*tls.Config, error) {
	fail := func(err error) (*tls.Config, error) {
		return nil, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "tls", Message: err.Error(), Err: err}
	}
	cert, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return fail(err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"}}
	if t.ClientCA == "" {
		return cfg, nil
	}
	pem, err := os.ReadFile(t.ClientCA)
	if err != nil {
		return fail(err)
	}
	cfg.ClientCAs, cfg.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
		return fail(fmt.Errorf("%s: no certificate in it", t.ClientCA))
	}
	return cfg, nil
}
