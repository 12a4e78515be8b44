package native

import (
	"context"
	"time"

	"belljar/backend/native/keeper"

	"golang.org/x/sys/unix"
)

// expiry is a time as the keeper takes it: nanoseconds of CLOCK_BOOTTIME, 0 for
// never. It runs on while the machine sleeps, as the wall clock does, and is not
// set by anybody.
func expiry(at time.Time) (uint64, error) {
	if at.IsZero() {
		return 0, nil
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, err
	}
	return uint64(max(ts.Nano()+int64(time.Until(at)), 1)), nil
}

// Expire implements [belljar.Expirer].
func (in *instance) Expire(_ context.Context, at time.Time) error {
	when, err := expiry(at)
	if err != nil {
		return err
	}
	return in.conn.Send(keeper.NewMsg(keeper.MExpire, 0).U64(when))
}
