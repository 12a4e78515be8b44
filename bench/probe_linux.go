package bench

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// probeVerb is the hidden first argument by which a program that calls
// [MaybeMain] is asked to be what is measured inside a sandbox.
const probeVerb = "bench-probe"

// MaybeMain ends the process as the benchmark's probe when it was started as
// one. Programs that are given as [Options.Self] call it first thing.
func MaybeMain() {
	if len(os.Args) < 3 || os.Args[1] != probeVerb {
		return
	}
	n := 1
	if len(os.Args) > 3 {
		n, _ = strconv.Atoi(os.Args[3])
	}
	if err := probe(os.Args[2], n); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// probeFile exists outside and inside, as the same inode.
const probeFile = "/usr/bin/env"

// probe acts. The loops print nanoseconds for each operation, several rounds in
// one start so that the first does not count for all.
func probe(act string, n int) error {
	switch act {
	case "spin": // n threads, for ever
		runtime.GOMAXPROCS(n)
		for range n {
			go func() {
				runtime.LockOSThread()
				for x := uint64(1); x != 0; x = x*3 | 1 {
				}
			}()
		}
		select {}
	case "flood": // n MiB to standard output
		buf := make([]byte, 64<<10)
		for range n * 16 {
			if _, err := os.Stdout.Write(buf); err != nil {
				return err
			}
		}
		return nil
	case "syscall":
		return loop(n, func() error { unix.Getppid(); return nil })
	case "stat":
		var st unix.Stat_t
		return loop(n, func() error { return unix.Stat(probeFile, &st) })
	case "open":
		buf := make([]byte, 4096)
		return loop(n, func() error {
			fd, err := unix.Open(probeFile, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			if _, err := unix.Read(fd, buf); err != nil {
				return err
			}
			return unix.Close(fd)
		})
	case "cpu":
		x := uint64(1)
		err := loop(n, func() error {
			for range 1000 {
				x = x*6364136223846793005 + 1442695040888963407
			}
			return nil
		})
		if x == 0 {
			return fmt.Errorf("the generator reached 0")
		}
		return err
	}
	return fmt.Errorf("no probe %q", act)
}

func loop(n int, f func() error) error {
	for range 6 {
		start := time.Now()
		for range n {
			if err := f(); err != nil {
				return err
			}
		}
		fmt.Println(float64(time.Since(start).Nanoseconds()) / float64(n))
	}
	return nil
}
