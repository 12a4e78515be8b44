package native

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"belljar/internal/linux/cgroup"

	"golang.org/x/sys/unix"
)

// Clean removes the top groups of runtimes that were killed together with their
// nursery, so that nobody was left to remove them. Those of living runtimes are
// locked by them; those of persistent sandboxes wait for whoever adopts them.
func (b *Backend) Clean(ctx context.Context) error {
	var tops []string
	seen := map[string]bool{}
	for _, parent := range cgroup.Detect().Parents {
		if seen[parent] {
			continue
		}
		seen[parent] = true
		ents, err := os.ReadDir(parent)
		if err != nil {
			continue // a hierarchy that went away has nothing of ours
		}
		for _, e := range ents {
			tag, ok := strings.CutPrefix(e.Name(), "belljar-")
			if !ok || !e.IsDir() || !validTag(tag) || strings.HasPrefix(tag, "p-") || tag == "self" {
				continue
			}
			path := filepath.Join(parent, e.Name())
			var st unix.Stat_t
			// One that is being made is not locked yet.
			if unix.Stat(path, &st) == nil && time.Since(time.Unix(st.Mtim.Sec, st.Mtim.Nsec)) > time.Minute {
				tops = append(tops, path)
			}
		}
	}
	if err := ctx.Err(); err != nil || len(tops) == 0 {
		return err
	}
	var errs []error
	for _, top := range tops {
		if err := cgroup.Sweep([]string{top}); err != nil && !errors.Is(err, cgroup.ErrInUse) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
