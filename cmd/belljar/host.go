package main

import (
	"cmp"
	"context"
	"os"

	"belljar"
	daemon "belljar/backend/remote"
)

// runtimeOf is the runtime of a daemon, or this machine's own without one.
func runtimeOf(ctx context.Context, host string) (*belljar.Runtime, error) {
	host = cmp.Or(host, os.Getenv("BELLJAR_HOST"))
	if host == "" {
		return newRuntime(ctx, belljar.Config{})
	}
	b, err := daemon.New(daemon.Config{URL: host, Key: os.Getenv("BELLJAR_KEY")})
	if err != nil {
		return nil, err
	}
	return belljar.New(ctx, belljar.Config{}, b)
}
