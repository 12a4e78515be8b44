package native

import "belljar"

// diskMount makes a writable file system on disk for the sandbox.
func (in *instance) diskMount() (int, error) {
	return -1, &belljar.Error{Code: belljar.CodeUnsupported, Op: "create", Message: "limits.diskBacking: disk is not available", Hint: "limits.diskBacking: memory"}
}
