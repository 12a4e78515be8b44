//go:build !unix

package remote

const noFollow = 0
