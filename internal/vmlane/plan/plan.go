// Package plan is what the vmlane tells its guest: which modules to load and
// which tests to run. It is shared by the tool and the guest's init.
package plan

// Plan is /plan.json of the initramfs.
type Plan struct {
	Modules []string
	Tests   []Test
	Verbose bool
}

// Test is one run of a test binary.
type Test struct {
	Name string
	Dir  string
	Args []string
	Env  []string
	Root bool
}

// Marker lines on the console: Begin + name, and End + name + ": " + status.
const (
	Begin = "--- vmlane begin: "
	End   = "--- vmlane end: "
)
