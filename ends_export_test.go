package belljar

import "io"

// ParseEnds returns the ids of a log of ends.
func ParseEnds(r io.Reader) []string {
	var ids []string
	for _, e := range parseEnds(r) {
		ids = append(ids, e.Result.ID)
	}
	return ids
}
