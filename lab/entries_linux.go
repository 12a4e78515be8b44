package lab

import "slices"

// Entries are all attacks, in the order of the guarantees.
func Entries() []Entry {
	return slices.Concat(fileEntries(), surfaceEntries(), resourceEntries(), networkEntries(), lifeEntries(), promiseEntries(), shareEntries(), faultEntries())
}
