//go:build !unix

package audit

const oNofollow = 0
