// Probe is the attacker of the guarantee laboratory as a program of its own:
// the first argument names an attack or utility, the rest are its arguments.
package main

import (
	"os"

	"belljar/lab/attack"
)

func main() { os.Exit(attack.Main(os.Args[1:])) }
