// Package server is the daemon's side of the API in api/belljar/v1: it turns
// requests into calls of one [belljar.Runtime], for tenants that do not see each
// other. It decides who may do what, and counts and logs; what is enforced on
// programs is decided in the runtime and below. It speaks Connect, gRPC and
// gRPC-Web, and JSON by POST, on the listeners that it is given.
package server
