// Package belljarv1connect is the generated side of the API's services: clients
// and handlers for Connect, gRPC and gRPC-Web. It holds no logic.
package belljarv1connect
