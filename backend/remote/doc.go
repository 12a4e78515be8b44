// Package remote is a backend that is another machine's, or another process's,
// daemon: with it the API of package belljar works on far sandboxes as on near
// ones. What is enforced is enforced there; this side keeps ids, states, output
// and results as for every backend. A broken connection is made again: output
// and input go on at the byte where they were.
//
// A sandbox that is not destroyed, because this side was killed, ends when its
// lifetime there does.
package remote
