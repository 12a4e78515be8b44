package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"belljar"
)

// SuperviseVerb is the hidden first argument by which a program that carries
// [Supervise] is asked to be a supervisor that will be killed.
const SuperviseVerb = "lab-supervise"

// order is what the lab asks of a supervisor process, as JSON in its second argument.
type order struct {
	Sandboxes int
	Config    belljar.Config
	Spec      belljar.Spec
	Probe     []string // inside
	Mark      string   // in the command line of every program
	Dir       string
}

// MaybeSupervise ends the process as a supervisor when it was started as one.
// Programs that run the lab call it first thing, after [attack.MaybeMain].
func MaybeSupervise(runtime func(context.Context, belljar.Config) (*belljar.Runtime, error)) {
	if len(os.Args) > 2 && os.Args[1] == SuperviseVerb {
		fmt.Println("error:", Supervise(context.Background(), os.Args[2], runtime))
		os.Exit(1)
	}
}

// Supervise makes the sandboxes of an order, starts a program in each, prints
// "ready" and waits to be killed. When it returns, there was an error.
func Supervise(ctx context.Context, doc string, runtime func(context.Context, belljar.Config) (*belljar.Runtime, error)) error {
	var o order
	if err := json.Unmarshal([]byte(doc), &o); err != nil {
		return err
	}
	rt, err := runtime(ctx, o.Config)
	if err != nil {
		return err
	}
	for i := range o.Sandboxes {
		sb, err := rt.Create(ctx, o.Spec)
		if err != nil {
			return fmt.Errorf("sandbox %d: %w", i, err)
		}
		argv := append(append([]string{}, o.Probe...), "sleep", o.Mark)
		cmd := sb.Command(argv[0], argv[1:]...)
		cmd.Dir = o.Dir
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(ctx); err != nil {
			return fmt.Errorf("program %d: %w", i, err)
		}
		if _, err := out.Read(make([]byte, 16)); err != nil {
			return fmt.Errorf("program %d: %w", i, errors.Join(err, errors.New("no output")))
		}
	}
	fmt.Println("ready " + strconv.Itoa(o.Sandboxes))
	// Somebody who is never killed must not stay for ever.
	time.Sleep(5 * time.Minute)
	return errors.New("nobody killed this supervisor")
}
