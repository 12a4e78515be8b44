package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"belljar"
	"belljar/server"
	"belljar/server/audit"
	"belljar/server/state"

	"github.com/spf13/cobra"
)

// serveFlags are those of serve.
type serveFlags struct {
	state     string
	socket    string
	tcp       []string
	tls       server.TLS
	plain     bool
	ephemeral bool
	ttl       time.Duration
	retain    time.Duration
	grace     time.Duration
	commands  bool
}

func newServe() *cobra.Command {
	f := serveFlags{ttl: server.DefaultTTL, retain: time.Hour, grace: 10 * time.Second}
	c := &cobra.Command{
		Use:   "serve",
		Short: "Serve the API to many users",
		Long: `serve runs the daemon: the API of api/belljar/v1 by Connect, gRPC and JSON over
POST, on a unix socket that only this user can connect to, and on TCP where asked.

Sandboxes outlive the daemon: after a restart, a crash or an upgrade it takes them
back, with their executions and output. SIGTERM ends it and leaves them; SIGINT too.`,
		Example: `  belljar serve
  belljar serve --listen 127.0.0.1:7430
  curl --unix-socket /run/belljar/belljar.sock -H 'Content-Type: application/json' \
    -d '{}' http://localhost/belljar.v1.SandboxService/Create`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd, &f) },
	}
	fs := c.Flags()
	fs.StringVar(&f.state, "state-dir", "", "`dir` for keys, records and output\n(default /var/lib/belljar for root, else $XDG_STATE_HOME/belljar/daemon)")
	fs.StringVar(&f.socket, "socket", "", "`path` of the unix socket (default /run/belljar/belljar.sock for root,\nelse $XDG_RUNTIME_DIR/belljar/belljar.sock); \"none\": none")
	fs.StringArrayVar(&f.tcp, "listen", nil, "TCP `address` to listen on too; may be repeated")
	fs.StringVar(&f.tls.Cert, "tls-cert", "", "PEM `file` with the certificate for --listen")
	fs.StringVar(&f.tls.Key, "tls-key", "", "PEM `file` with its key")
	fs.StringVar(&f.tls.ClientCA, "tls-client-ca", "", "PEM `file`: clients need a certificate of these authorities")
	fs.BoolVar(&f.plain, "insecure-plain-tcp", false, "serve TCP beyond loopback without TLS: keys and output can be read on the wire")
	fs.BoolVar(&f.ephemeral, "ephemeral", false, "state in a directory of its own; everything ends with this process, which\nends when its standard input does")
	fs.DurationVar(&f.ttl, "ttl", f.ttl, "lifetime of sandboxes whose spec has none")
	fs.DurationVar(&f.retain, "retain", f.retain, "how long results are kept after the end of their sandbox")
	fs.DurationVar(&f.grace, "grace", f.grace, "how long requests may take to end at shutdown")
	fs.BoolVar(&f.commands, "audit-commands", false, "write command lines into the audit log, not their hash")
	return c
}

// daemonDirs are the default places of state and socket.
func daemonDirs() (state, socket string, err error) {
	if os.Geteuid() == 0 {
		return "/var/lib/belljar", "/run/belljar/belljar.sock", nil
	}
	run, err := defaultStateDir()
	if err != nil {
		return "", "", err
	}
	return filepath.Join(run, "daemon"), filepath.Join(run, "belljar.sock"), nil
}

func serve(cmd *cobra.Command, f *serveFlags) (err error) {
	sig := watchInterrupts()
	defer sig.stop()
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	sig.handle(cancel, func() { os.Exit(exitCancelled) })

	log := daemonLog(os.Stderr)
	dir, socket, err := daemonDirs()
	if err != nil {
		return err
	}
	if f.state != "" {
		if dir, err = filepath.Abs(f.state); err != nil {
			return err
		}
	}
	if f.socket != "" {
		socket = f.socket
	}
	if f.ephemeral {
		if f.state != "" {
			return usageError("serve", "--ephemeral has a state directory of its own", "leave --state-dir out")
		}
		if dir, err = os.MkdirTemp("", "belljar-serve-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		if f.socket == "" {
			socket = filepath.Join(dir, "s", "belljar.sock")
		}
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	} else if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}

	listeners, err := f.listeners(socket)
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}()
	if err != nil {
		return err
	}
	cfg := belljar.Config{StateDir: filepath.Join(dir, "sandboxes"), Persist: !f.ephemeral, Logger: log}
	if cfg.Persist {
		cfg.RetainEnded = f.retain
	}
	rt, err := newRuntime(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		err = errors.Join(err, rt.Close(ctx))
	}()
	store, err := state.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	trail, err := audit.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, trail.Close()) }()
	keys, err := server.NewKeys(store)
	if err != nil {
		return err
	}
	auth := server.Local{UIDs: []int{0, os.Geteuid()}, Next: keys}
	s, err := server.New(server.Config{Runtime: rt, Auth: auth, Store: store, Audit: trail, AuditCommands: f.commands, TTL: f.ttl, Version: readVersion().Version, Logger: log})
	if err != nil {
		return err
	}
	return listen(ctx, cmd.OutOrStdout(), f, s, rt, listeners, log)
}

// listen serves until ctx ends.
func listen(ctx context.Context, out io.Writer, f *serveFlags, s *server.Server, rt *belljar.Runtime, listeners []net.Listener, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { ended <- s.Serve(ctx, l, f.grace) }()
	}
	swept, err := rt.Recover(ctx)
	if err != nil {
		log.Warn("recover", "err", err)
	}
	log.Info("ready", "adopted", len(swept.Adopted), "removed", len(swept.Removed), "skipped", len(swept.Skipped))
	s.Ready(true)
	addrs := make([]string, len(listeners))
	for i, l := range listeners {
		addrs[i] = l.Addr().Network() + ":" + l.Addr().String()
	}
	if f.ephemeral {
		err = json.NewEncoder(out).Encode(map[string]any{"listen": addrs})
	} else {
		for _, a := range addrs {
			_, err = fmt.Fprintln(out, "listening on", a)
		}
	}
	if err != nil {
		return err
	}
	var errs []error
	for range listeners {
		errs = append(errs, <-ended)
		cancel() // one that fails ends all
	}
	return errors.Join(errs...)
}

// listeners are those that the service manager passed, or those of the flags.
func (f *serveFlags) listeners(socket string) ([]net.Listener, error) {
	ls, err := server.Inherited()
	if err != nil || len(ls) > 0 {
		return ls, err
	}
	if socket != "none" {
		l, err := server.ListenUnix(socket)
		if err != nil {
			return ls, err
		}
		ls = append(ls, l)
	}
	for _, addr := range f.tcp {
		l, err := server.ListenTCP(addr, f.tls, f.plain)
		if err != nil {
			return ls, err
		}
		ls = append(ls, l)
	}
	if len(ls) == 0 {
		return nil, usageError("serve", "nothing to listen on", "give --socket or --listen")
	}
	return ls, nil
}

// daemonLog is JSON lines; BELLJAR_LOG sets the level.
func daemonLog(w io.Writer) *slog.Logger {
	level := slog.LevelInfo
	if v := os.Getenv("BELLJAR_LOG"); v != "" {
		if err := level.UnmarshalText([]byte(v)); err != nil {
			level = slog.LevelInfo
		}
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
}
