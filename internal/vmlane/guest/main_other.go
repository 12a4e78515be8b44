//go:build !linux

package main

func main() { panic("this program is the first process of a Linux guest") }
