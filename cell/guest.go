package cell

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"belljar"
)

// guest is an interpreter that was started for a cell, as the supervisor holds it.
type guest struct {
	worker *Worker
	n      uint64
	dir    string // its private directory, or empty

	ctl, out, err *os.File
	pidfd         *os.File
	cmd           *belljar.Cmd      // an execution of its own
	place         belljar.Placement // or a fork in a group of its own

	once    sync.Once // reaps
	reapErr error
}

// greet waits for the first frame, and holds the process that sent it.
func (g *guest) greet(ctx context.Context) (err error) {
	if g.cmd != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, startTimeout)
		defer cancel()
		// An interpreter that cannot be started never says anything.
		done := g.cmd.Done()
		go func() {
			select {
			case <-done:
				time.Sleep(exitGrace)
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	stop := context.AfterFunc(ctx, func() { _ = g.ctl.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil {
			err = &belljar.Error{Code: belljar.CodeCancelled, Op: "cell open", Message: ctx.Err().Error(), Err: ctx.Err(), Recoverable: true}
		}
	}()
	b, pidfd, err := identify(g.ctl)
	if err != nil {
		return g.mute(errors.Join(ctx.Err(), err))
	}
	g.pidfd = pidfd
	r := bufio.NewReader(io.MultiReader(bytes.NewReader(b), g.ctl))
	f, err := readFrame(r, maxHello, nil)
	if err == nil && r.Buffered() > 0 {
		err = broken("the guest spoke before it was asked")
	}
	var m *message
	if err == nil {
		m, err = decode(f)
	}
	if err == nil && m.t != tHello {
		err = broken("the first frame is no hello")
	}
	if err == nil && m.v != ABIVersion {
		err = broken("the host speaks version %d, not %d", m.v, ABIVersion)
	}
	if err != nil {
		return protocolFault(err)
	}
	return nil
}

// mute explains an interpreter that did not get as far as its first frame.
func (g *guest) mute(err error) error {
	if g.cmd != nil {
		select {
		case <-g.cmd.Done():
			if _, werr := g.cmd.Wait(context.Background()); werr != nil {
				return werr
			}
		default:
		}
	}
	says := make([]byte, tellMost)
	_ = g.err.SetReadDeadline(time.Now().Add(exitGrace))
	n, _ := io.ReadFull(g.err, says) // as much as there is
	msg := fmt.Sprintf("the interpreter did not start: %v", err)
	if n > 0 {
		msg = fmt.Sprintf("the interpreter did not start: %s", bytes.TrimSpace(says[:n]))
	}
	code := belljar.CodeExecFailed
	if errors.Is(err, context.Canceled) {
		code = belljar.CodeCancelled
	}
	return &belljar.Error{Code: code, Op: "cell open", Message: msg, Err: err, Recoverable: true}
}

// exited reports whether the process has ended, or does so within a moment.
func (g *guest) exited(wait time.Duration) bool {
	if wait <= 0 || hasExited(g.pidfd) {
		return hasExited(g.pidfd)
	}
	ended := make(chan struct{})
	go func() {
		_ = awaitExit(g.pidfd) // it returns when the file is closed, too
		close(ended)
	}()
	select {
	case <-ended:
		return true
	case <-time.After(wait):
		return false
	}
}

// usage is what the kernel counted for the whole tree.
func (g *guest) usage(ctx context.Context) (belljar.Usage, error) {
	if g.place != nil {
		return g.place.Usage(ctx)
	}
	return g.cmd.Usage(ctx)
}

// oom reports whether the memory limit has killed a process of the tree.
func (g *guest) oom() bool {
	if g.place != nil {
		yes, err := g.place.OOM()
		return yes && err == nil
	}
	select {
	case <-g.cmd.Done():
		res, _ := g.cmd.Wait(context.Background())
		return res != nil && res.Cause == belljar.CauseMemory
	default:
		return false
	}
}

// kill ends the tree. It does not wait.
func (g *guest) kill() {
	// A fork's children end in reap, with its group.
	if g.cmd != nil {
		_ = g.cmd.Signal(context.Background(), syscall.SIGKILL) // the end of it is the end of its tree
	}
	if g.pidfd != nil {
		killProcess(g.pidfd)
	}
}

// reap returns when nothing of the tree is left, nor of its directory.
func (g *guest) reap() error {
	g.once.Do(func() {
		var errs []error
		if g.place != nil {
			errs = append(errs, g.place.Close(context.Background()))
		}
		if g.cmd != nil {
			select {
			case <-g.cmd.Done():
			case <-time.After(10 * time.Second):
				errs = append(errs, &belljar.Error{Code: belljar.CodeInternal, Op: "cell", Message: "the interpreter did not end within 10 s"})
			}
		}
		if g.dir != "" && g.worker.sb.State() == belljar.SandboxReady {
			if err := g.worker.sb.RemoveAll(g.dir); err != nil && !errors.Is(err, belljar.ErrDestroyed) {
				errs = append(errs, err)
			}
		}
		g.reapErr = errors.Join(errs...)
	})
	return g.reapErr
}

func (g *guest) closeFiles() {
	for _, f := range []*os.File{g.ctl, g.out, g.err, g.pidfd} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// discard ends an interpreter that became no cell's.
func (g *guest) discard() error {
	g.kill()
	err := g.reap()
	g.closeFiles()
	return err
}
