package keeper

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestSanitizers runs the keeper's own code on damaged messages for a few seconds,
// under AddressSanitizer and UBSan, with a kernel that is a table (src/fuzz).
func TestSanitizers(t *testing.T) {
	cc := gcc(t)
	if testing.Short() {
		t.Skip("compiles and runs for some seconds")
	}
	bin := filepath.Join(t.TempDir(), "fuzz")
	flags := []string{
		"-std=gnu11", "-g", "-O1", "-Wall", "-Werror", "-Wno-unused-function", "-DKEEPER_FUZZ", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined",
		"-fno-builtin", "-o", bin, "src/fuzz/fuzz.c",
	}
	if out, err := exec.Command(cc, flags...).CombinedOutput(); err != nil {
		if perr := exec.Command(cc, "-fsanitize=address,undefined", "-shared", "-fPIC", "-x", "c", "-o", bin, os.DevNull).Run(); perr != nil {
			t.Skipf("no sanitizers here: %v", perr)
		}
		t.Fatalf("%v\n%s", err, out)
	}
	for seed := range 2 {
		cmd := exec.Command(bin, "2", fmt.Sprint(seed+1))
		cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0:handle_abort=1:abort_on_error=0", "UBSAN_OPTIONS=print_stacktrace=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed+1, err, out)
		}
		var inputs, messages, sandboxes, confined, executions int
		if _, err := fmt.Sscanf(string(out), "inputs %d, messages %d, sandboxes %d, confined %d, executions %d", &inputs, &messages, &sandboxes, &confined, &executions); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		// It must get as far as executions, or it tries only the front door.
		if inputs == 0 || sandboxes == 0 || confined == 0 || executions == 0 {
			t.Errorf("seed %d did not get far: %s", seed+1, out)
		}
		t.Logf("seed %d: %s", seed+1, out)
	}
}
