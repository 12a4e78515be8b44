package belljar

// ErrorInfo is what there is to know about a [Code]. The table of them is the
// source of docs/errors.md and spec/errors.json, and of the answers of every API.
type ErrorInfo struct {
	Code    Code   `json:"code"`
	Meaning string `json:"meaning"` // one sentence
	Cause   string `json:"cause"`   // the usual one
	Action  string `json:"action"`  // what to do
	Usable  Usable `json:"usable"`  // can a sandbox that was there before still be used
	HTTP    int    `json:"http"`    // status of a REST answer
	RPC     string `json:"rpc"`     // code of Connect and gRPC, in Connect's spelling
}

// Usable says whether a sandbox survives an error.
type Usable string

// Whether a sandbox survives an error.
const (
	UsableYes   Usable = "yes"
	UsableNo    Usable = "no"
	UsableMaybe Usable = "maybe" // Error.Recoverable says so for the one at hand
)

// Info returns the table's row of a code, and false for a code that is none.
func (c Code) Info() (ErrorInfo, bool) {
	for _, e := range errorTable {
		if e.Code == c {
			return e, true
		}
	}
	return ErrorInfo{}, false
}

// ErrorTable returns a row for every code, in the order of their declaration.
func ErrorTable() []ErrorInfo { return append([]ErrorInfo(nil), errorTable[:]...) }

var errorTable = [...]ErrorInfo{
	{
		Code:    CodeInvalidSpec,
		Meaning: "A spec, a limit or a command is not valid; nothing was created or run.",
		Cause:   "A misspelt field, a value out of range, a wrong unit, or two fields that contradict each other.",
		Action:  "Correct the field that the error names. The hint says what it takes.",
		Usable:  UsableYes, HTTP: 400, RPC: "invalid_argument",
	},
	{
		Code:    CodeInvalidBackend,
		Meaning: "The spec names a backend that this runtime was not given.",
		Cause:   "A misspelt name, or a program that was built or configured without that backend.",
		Action:  "Use a backend that `belljar doctor` lists, or leave the field out for native.",
		Usable:  UsableYes, HTTP: 400, RPC: "invalid_argument",
	},
	{
		Code:    CodeUnsupported,
		Meaning: "The request is valid, but this version, this backend or this platform cannot do it.",
		Cause:   "A field of the schema that is not built yet, or an ability that the backend lacks.",
		Action:  "Remove the field, or use a backend that has the capability. Retrying does not help.",
		Usable:  UsableYes, HTTP: 501, RPC: "unimplemented",
	},
	{
		Code:    CodeIsolationUnavailable,
		Meaning: "A layer of confinement that the spec requires is missing on this host, so nothing was started.",
		Cause:   "User namespaces are restricted, no cgroup can be written, or the kernel is too old or lacks the feature.",
		Action:  "Do what the hint says to get the layer; `belljar doctor` shows all of them. Or accept less, in writing: isolation.mode compat, or isolation.layers.",
		Usable:  UsableYes, HTTP: 412, RPC: "failed_precondition",
	},
	{
		Code:    CodeExecFailed,
		Meaning: "The program was never started; the error names the step and the system's reason.",
		Cause:   "It does not exist inside the sandbox, is not executable, or lacks its interpreter.",
		Action:  "Check the name, PATH and dir as they are inside the sandbox; mount or install what is missing.",
		Usable:  UsableYes, HTTP: 422, RPC: "failed_precondition",
	},
	{
		Code:    CodeFS,
		Meaning: "An operation on the sandbox's files failed or was refused; nothing partial was left.",
		Cause:   "The file does not exist, a link leads out of the sandbox, it is no regular file, or the disk limit is reached.",
		Action:  "Check the path as it is inside the sandbox.",
		Usable:  UsableYes, HTTP: 422, RPC: "failed_precondition",
	},
	{
		Code:    CodeNotFound,
		Meaning: "There is no such sandbox or execution, or it belongs to another tenant.",
		Cause:   "A misspelt id or name, or a sandbox whose lifetime ended.",
		Action:  "List what exists; create it anew.",
		Usable:  UsableYes, HTTP: 404, RPC: "not_found",
	},
	{
		Code:    CodeConflict,
		Meaning: "The request contradicts something that exists.",
		Cause:   "The name is taken, or an id was used again for something else.",
		Action:  "Choose another name or id, or use what exists.",
		Usable:  UsableYes, HTTP: 409, RPC: "already_exists",
	},
	{
		Code:    CodeDestroyed,
		Meaning: "The sandbox was destroyed, or is about to be.",
		Cause:   "Destroy was called, its lifetime ended, or its supervisor went away.",
		Action:  "Create another one.",
		Usable:  UsableNo, HTTP: 410, RPC: "failed_precondition",
	},
	{
		Code:    CodeCPU,
		Meaning: "An execution used up its CPU time and was killed with its whole tree.",
		Cause:   "A busy loop, more work than expected, or many children that each used a little.",
		Action:  "Raise limits.cpuTime, or make the program do less.",
		Usable:  UsableYes, HTTP: 422, RPC: "resource_exhausted",
	},
	{
		Code:    CodeOOM,
		Meaning: "An execution needed more memory than its limit and was killed with its whole tree.",
		Cause:   "The program's own memory, or files in memory-backed directories: they count too, also those of earlier executions.",
		Action:  "Raise limits.memory, remove files, or set limits.diskBacking to disk.",
		Usable:  UsableYes, HTTP: 422, RPC: "resource_exhausted",
	},
	{
		Code:    CodeDisk,
		Meaning: "An execution failed after the sandbox's disk or inode limit was reached.",
		Cause:   "Large or many files in the workspace, /tmp or /dev/shm: they share one limit.",
		Action:  "Remove files, or raise limits.disk or limits.inodes.",
		Usable:  UsableYes, HTTP: 422, RPC: "resource_exhausted",
	},
	{
		Code:    CodeOutput,
		Meaning: "An execution wrote more to stdout and stderr than limits.output and was killed with its whole tree.",
		Cause:   "An endless loop that prints, or verbose logging.",
		Action:  "Write to a file, print less, or raise limits.output.",
		Usable:  UsableYes, HTTP: 422, RPC: "resource_exhausted",
	},
	{
		Code:    CodePids,
		Meaning: "An execution failed after the sandbox's limit of processes and threads was reached.",
		Cause:   "A fork bomb, or a program that starts a thread for each core or request.",
		Action:  "Raise limits.pids, or run fewer executions at once.",
		Usable:  UsableYes, HTTP: 422, RPC: "resource_exhausted",
	},
	{
		Code:    CodeTimeout,
		Meaning: "An execution reached its wall-clock timeout and was killed with its whole tree.",
		Cause:   "It waits for something that does not come, or needs longer than expected.",
		Action:  "Raise timeout, or find out what it waits for.",
		Usable:  UsableYes, HTTP: 504, RPC: "deadline_exceeded",
	},
	{
		Code:    CodeCancelled,
		Meaning: "The caller cancelled the request or the execution.",
		Cause:   "Cancel was called, or the context ended.",
		Action:  "Nothing, if that was meant.",
		Usable:  UsableYes, HTTP: 499, RPC: "canceled",
	},
	{
		Code:    CodePolicyInvalid,
		Meaning: "A policy document is not valid; nothing of it was applied.",
		Cause:   "An unknown key, a contradiction, a cycle, or a rule that can never match.",
		Action:  "Correct the line that the error names.",
		Usable:  UsableYes, HTTP: 400, RPC: "invalid_argument",
	},
	{
		Code:    CodePolicyDenied,
		Meaning: "The sandbox's policy does not allow what was attempted.",
		Cause:   "The program used a system call, path, destination or capability that it was not granted.",
		Action:  "Grant it in the policy, if the program may have it.",
		Usable:  UsableYes, HTTP: 403, RPC: "permission_denied",
	},
	{
		Code:    CodePolicyUnenforceable,
		Meaning: "The policy is valid, but this backend cannot enforce a rule of it on this host, so it was refused whole.",
		Cause:   "A rule needs a mechanism that the backend or the kernel lacks.",
		Action:  "Change the rule that the error names, or use a backend that has the mechanism.",
		Usable:  UsableYes, HTTP: 412, RPC: "failed_precondition",
	},
	{
		Code:    CodeUnauthenticated,
		Meaning: "The daemon does not know who is asking.",
		Cause:   "The key is missing, wrong, expired or revoked.",
		Action:  "Send a valid key.",
		Usable:  UsableYes, HTTP: 401, RPC: "unauthenticated",
	},
	{
		Code:    CodePermissionDenied,
		Meaning: "The caller is known, but may not do this.",
		Cause:   "The key lacks the scope.",
		Action:  "Use a key with the scope that the error names.",
		Usable:  UsableYes, HTTP: 403, RPC: "permission_denied",
	},
	{
		Code:    CodeQuotaExceeded,
		Meaning: "The tenant or the runtime has as many sandboxes, executions or resources as it may have.",
		Cause:   "Sandboxes that are never destroyed, or more work at once than was agreed.",
		Action:  "Destroy what is not needed, or try again later.",
		Usable:  UsableYes, HTTP: 429, RPC: "resource_exhausted",
	},
	{
		Code:    CodeUnavailable,
		Meaning: "The runtime cannot serve the request now, through no fault of the request.",
		Cause:   "It is shutting down, or the host is short of memory, disk space or descriptors.",
		Action:  "Try again after a moment.",
		Usable:  UsableMaybe, HTTP: 503, RPC: "unavailable",
	},
	{
		Code:    CodeInternal,
		Meaning: "The machinery failed in a way that it should not have.",
		Cause:   "A defect, or a host that behaves unexpectedly. It says nothing about the program in the sandbox.",
		Action:  "Destroy the sandbox and report the error with the output of `belljar doctor --json`.",
		Usable:  UsableMaybe, HTTP: 500, RPC: "internal",
	},
}
