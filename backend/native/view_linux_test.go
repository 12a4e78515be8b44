package native

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"belljar"
)

// inView runs a shell script in a sandbox of 256 MiB and one processor.
func inView(t *testing.T, mod func(*belljar.Spec), argv ...string) *belljar.Result {
	t.Helper()
	spec := belljar.Spec{Limits: belljar.Limits{Memory: 256 * belljar.MiB, CPU: 1}}
	if mod != nil {
		mod(&spec)
	}
	sb, err := newRuntime(t).Create(t.Context(), spec)
	if err != nil {
		t.Skip(err) // without groups there are neither such limits nor a view of them
	}
	if rep := sb.Report(); rep.Layer(belljar.LayerCgroup).Status != belljar.LayerApplied {
		t.Skip("no control groups here")
	}
	res, err := sb.Command(argv[0], argv[1:]...).Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// A sandbox sees its own control groups, read-only, and no others.
func TestOwnGroups(t *testing.T) {
	other := newRuntime(t)
	neighbour, err := other.Create(t.Context(), belljar.Spec{Tenant: "other", Limits: belljar.Limits{Memory: 64 * belljar.MiB}})
	if err != nil {
		t.Skip(err)
	}
	defer neighbour.Destroy(context.Background())
	res := inView(t, nil, "sh", "-c", `
cd /sys/fs/cgroup || exit 9
cat memory/memory.limit_in_bytes memory.max 2>/dev/null | head -n 1
cat cpu/cpu.cfs_quota_us cpu.max 2>/dev/null | head -n 1
for f in $(find . -type f) ; do ( : >> $f ) 2>/dev/null && echo "writable $f"; done
mkdir memory/x x 2>/dev/null && echo "made a group"
find . -type d | grep -v -e '^\.$' -e '^\./\(memory\|cpu\|cpuacct\|cpuset\)$' -e '/s[0-9]*$' -e '/init$' -e '/l[0-9a-z]*$' | sed 's/^/group /'
find ./cpuset ./cpuacct -mindepth 1 2>/dev/null | grep -v '^./cpuacct/' | head -n 3 | sed 's/^/covered /'
grep -w -e cgroup -e cgroup2 /proc/self/mountinfo | sed 's/^/mount /'`)
	lines := strings.Split(strings.TrimSpace(string(res.Stdout)), "\n")
	if len(lines) < 3 || lines[0] != strconv.Itoa(256<<20) || !strings.HasPrefix(lines[1], "100000") {
		t.Errorf("limits inside: %q %s", lines, res.Stderr)
	}
	for _, l := range lines[min(2, len(lines)):] {
		f := strings.Fields(l)
		if len(f) < 7 || f[0] != "mount" {
			t.Error(l)
			continue
		}
		if strings.Contains(f[4], "belljar") || !strings.HasPrefix(f[5], "/sys/fs/cgroup") || !strings.HasPrefix(f[6], "ro,nosuid,nodev,noexec") {
			t.Errorf("mount %q", l)
		}
	}
}

// Language runtimes size themselves by limits.memory and limits.cpu.
func TestRuntimesSizeThemselves(t *testing.T) {
	need := func(t *testing.T, prog string) {
		t.Helper()
		if _, err := exec.LookPath(prog); err != nil {
			t.Skip(err)
		}
	}
	t.Run("node", func(t *testing.T) {
		need(t, "node")
		res := inView(t, nil, "node", "-e", `
let keep = [], sum = 0
for (let i = 0; i < 1500; i++) { keep.push(new Array(131072).fill(i + 0.5)); if (keep.length > 16) keep = []; sum++ }
console.log(sum, require("v8").getHeapStatistics().heap_size_limit / 1048576)`)
		var n, heap float64
		if f := strings.Fields(string(res.Stdout)); len(f) == 2 {
			n, _ = strconv.ParseFloat(f[0], 64)
			heap, _ = strconv.ParseFloat(f[1], 64)
		}
		// The host's memory would give it gigabytes.
		if n != 1500 || heap > 400 {
			t.Errorf("%s: %s %s", res.Cause, res.Stdout, res.Stderr)
		}
	})
	t.Run("java", func(t *testing.T) {
		need(t, "java")
		need(t, "javac")
		const source = `public class Size { public static void main(String[] a) {
	byte[][] keep = new byte[16][]; long n = 0;
	for (int i = 0; i < 1500; i++) { byte[] b = new byte[1 << 20]; b[i] = 1; keep[i % 16] = b; n++; }
	System.out.println(n + " " + Runtime.getRuntime().maxMemory() / 1048576 + " " + Runtime.getRuntime().availableProcessors());
} }`
		dir := openTemp(t)
		if err := os.WriteFile(dir+"/Size.java", []byte(source), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("javac", "-d", dir, dir+"/Size.java").CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
		res := inView(t, func(s *belljar.Spec) { s.Mounts = []belljar.Mount{{Source: dir, Target: "/classes"}} }, "java", "-cp", "/classes", "Size")
		f := strings.Fields(string(res.Stdout))
		if len(f) != 3 || f[0] != "1500" || f[2] != "1" {
			t.Fatalf("%s: %s %s", res.Cause, res.Stdout, res.Stderr)
		}
		if heap, _ := strconv.Atoi(f[1]); heap < 32 || heap > 200 {
			t.Errorf("its heap is %d MiB of 256", heap)
		}
		if len(res.Stderr) > 0 {
			t.Errorf("stderr %q", res.Stderr)
		}
	})
}

// openTemp is a directory that everybody may enter.
func openTemp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "belljar-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
