// Package belljarv1 is the API of the daemon as protocol buffers, version 1: the
// messages; the services are in belljarv1connect. It holds generated code and no
// logic. Sandbox specs travel as google.protobuf.Struct of the one schema in
// spec/, so that there is no second definition of them.
package belljarv1

//go:generate sh -c "cd ../../.. && go tool -modfile=tools.mod buf generate"
