// Package cell hosts stateful interpreters in sandboxes: Python, JavaScript and bash
// that remember, answer in a fraction of a millisecond, and can be had in milliseconds
// by the hundred.
//
// A [Cell] speaks seven operations, frozen as ABI version 1: exec, call, post, recv,
// log, metric and request. [Open] makes one in a sandbox; a [Worker] makes many of a
// kind in one sandbox, forked from a preloaded interpreter; a [Fabric] keeps workers in
// a pool, never two tenants in one.
//
// What goes between supervisor and guest is JSON in frames, described by [Schema], on
// a socket that only the two have. All that a guest sends is bounded, checked
// for its form, and believed for nothing: what may be asked for, what time and memory
// an operation may take, and which process is which cell's is decided and
// watched here. A guest that breaks the protocol loses its cell and nothing else is touched.
//
// A cell is not a boundary: the sandbox around it is. Cells of one worker are parted from each other by
// means that docs/cells.md lists with what rests on what. The package does
// not isolate, and it interprets nothing of what a guest computes.
package cell
