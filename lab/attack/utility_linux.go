package attack

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func echo(args []string) int {
	if _, err := fmt.Println(strings.Join(args, " ")); err != nil {
		return 1
	}
	return 0
}

func cat(args []string) int {
	if len(args) == 0 {
		if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
			return 1
		}
		return 0
	}
	code := 0
	for _, name := range args {
		f, err := os.Open(name)
		if err == nil {
			_, err = io.Copy(os.Stdout, f)
			_ = f.Close()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// crash ends by SIGSEGV as a program without a handler would.
func crash([]string) int {
	signal.Reset(syscall.SIGSEGV)
	// Go's own handler would turn the signal into exit status 2.
	var sa [4]uint64 // SIG_DFL, no flags, no restorer, empty mask
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGSEGV), uintptr(unsafe.Pointer(&sa[0])), 0, 8, 0, 0)
	_ = unix.Kill(os.Getpid(), unix.SIGSEGV)
	time.Sleep(time.Second)
	return 99
}

// spin burns one processor for args[0] milliseconds (default: for ever).
func spin(args []string) int {
	ms := number(args, 0, -1)
	start := time.Now()
	var local uint64
	for ms < 0 || time.Since(start) < time.Duration(ms)*time.Millisecond {
		for i := 0; i < 1e6; i++ {
			local += uint64(i) * 31
		}
	}
	_ = local
	return 0
}

// sleepForever prints "ready" so that a caller can wait for it. Its arguments
// are only there to be found in the process list.
func sleepForever([]string) int {
	fmt.Println("ready")
	for {
		time.Sleep(time.Hour)
	}
}

func printEnv([]string) int {
	for _, e := range os.Environ() {
		fmt.Println(e)
	}
	return 0
}

func statFiles(args []string) int {
	code := 0
	for _, name := range args {
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			fmt.Printf("%s: %v\n", name, err)
			code = 1
			continue
		}
		fmt.Printf("%s: mode %o uid %d gid %d size %d\n", name, st.Mode, st.Uid, st.Gid, st.Size)
	}
	return code
}
