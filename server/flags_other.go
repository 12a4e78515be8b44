//go:build !unix

package server

const noFollow = 0
