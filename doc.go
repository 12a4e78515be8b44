// Package belljar runs programs that nobody should trust, on an ordinary
// Linux machine, and reports what really confined them.
//
// A [Runtime] makes sandboxes on a [Backend]; a [Sandbox] holds files, limits
// and a network policy; a [Cmd], shaped like [os/exec.Cmd], runs one program in
// it and yields a [Result]:
//
//	rt, err := belljar.New(ctx, belljar.Config{}, native.New(native.Config{}))
//	sb, err := rt.Create(ctx, belljar.Spec{Limits: belljar.Limits{Memory: 256 * belljar.MiB}})
//	defer sb.Destroy(ctx)
//	res, err := sb.Command("python3", "-c", "print(6*7)").Run(ctx)
//
// How a program ended is always in the Result, whatever the cause; the error
// beside it speaks only of the machinery.
//
// This package is the vocabulary and the supervisor. It isolates nothing by
// itself: that is what a Backend does, and it does so on the trusted side. It
// installs no signal handlers, changes no process-wide state and reads no
// environment variables.
package belljar
