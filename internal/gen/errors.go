package main

import (
	"bytes"
	"fmt"

	"belljar"
)

func errorsJSON() ([]byte, error) {
	return marshal(struct {
		Comment     string              `json:"$comment"`
		SpecVersion string              `json:"specVersion"`
		Codes       []belljar.ErrorInfo `json:"codes"`
	}{"Generated from the Go table by go generate.", belljar.SpecVersion, belljar.ErrorTable()})
}

var usable = map[belljar.Usable]string{
	belljar.UsableYes:   "yes",
	belljar.UsableNo:    "no",
	belljar.UsableMaybe: "perhaps: `recoverable` in the error says so",
}

func errorsPage() []byte {
	var b bytes.Buffer
	b.WriteString(`<!-- Generated from errors_table.go by go generate; do not edit. -->

# Errors

Every error is a ` + "`*belljar.Error`" + ` with one of the codes below. The set is closed. ` + "`errors.Is(err, belljar.ErrOOM)`" + `
and its siblings match by code. How a program ended is in its result, whose ` + "`error`" + ` has the same form; errors
that a call returns speak of the machinery.

| code | HTTP | Connect, gRPC | sandbox still usable |
|---|---|---|---|
`)
	for _, e := range belljar.ErrorTable() {
		fmt.Fprintf(&b, "| [%s](#%s) | %d | `%s` | %s |\n", e.Code, bytes.ToLower([]byte(e.Code)), e.HTTP, e.RPC, usable[e.Usable])
	}
	for _, e := range belljar.ErrorTable() {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n* **Usual cause:** %s\n* **What to do:** %s\n* **Sandbox still usable:** %s.\n",
			e.Code, e.Meaning, e.Cause, e.Action, usable[e.Usable])
	}
	return b.Bytes()
}
