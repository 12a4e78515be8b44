//go:build linux

// Consumer is the quick start as a program in a module of its own: it knows
// nothing of belljar but the two packages that everybody imports.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	// All that a user imports.
	"belljar"
	"belljar/backend/native"
)

func main() {
	ctx := context.Background()
	rt, err := belljar.New(ctx, belljar.Config{}, native.New(native.Config{}))
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close(ctx)
	sb, err := rt.Create(ctx, belljar.Spec{Limits: belljar.Limits{Memory: 256 * belljar.MiB}})
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Destroy(ctx)

	if err := sb.WriteFile("answer.py", []byte("print(6 * 7)\n"), 0o644); err != nil {
		log.Fatal(err)
	}
	cmd := sb.Command("python3", "answer.py")
	cmd.Timeout = 10 * time.Second
	res, err := cmd.Run(ctx)
	if err != nil {
		log.Fatal(err) // the machinery; how the program ended is in res
	}
	fmt.Printf("%s, exit %d: %s", res.State, res.ExitCode, res.Stdout)
	fmt.Println("network:", res.Confinement.Layer(belljar.LayerNet).Status)
}
