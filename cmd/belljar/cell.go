package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"belljar"
	"belljar/cell"
	"belljar/cmd/belljar/internal/term"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

type cellFlags struct {
	spec     specFlags
	language string
	program  string
	preload  []string
	imports  []string
	images   string
}

const cellLong = `cell makes a sandbox with an interpreter in it that remembers, and reads what to
run from the terminal, or line by line from other input.

A block of Python ends with an empty line. Ctrl-C interrupts what runs, Ctrl-D
ends. The lines :reset and :quit begin anew and end. Images are saved, and
shown as a path.

The limits --timeout, --cpu-time and --output are those of each piece of code;
exceeding one ends the interpreter, and the next piece gets a new one.`

const cellRunLong = `run makes a sandbox with an interpreter in it, runs one file as a single
piece of code, shows what its last expression gives, and removes everything.

The language follows from the name: .py, .js, .mjs, .cjs, .sh, .bash; - is
stdin, in Python unless --language says otherwise. The file itself stays on
the host.

Exit status: 0, or 1 when the code raised; 124 when the timeout ended it; 137
when a limit did; 125 when belljar itself could not do what was asked; 130
after Ctrl-C.`

func newCell() *cobra.Command {
	var f cellFlags
	c := &cobra.Command{
		Use:   "cell [flags]",
		Short: "Talk to an interpreter that remembers",
		Long:  cellLong,
		Example: `  belljar cell
  belljar cell --language javascript
  belljar cell --preload pandas,matplotlib.pyplot --memory 1GiB --timeout 1m
  belljar cell run report.py --images ./out`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return talk(cmd.Context(), &f) },
	}
	f.declare(c.Flags())
	var r cellFlags
	run := &cobra.Command{
		Use:   "run [flags] FILE",
		Short: "Run a file in an interpreter, and show its last value and its images",
		Long:  cellRunLong,
		Args:  cobra.ExactArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return runCell(cmd.Context(), &r, args[0]) },
	}
	r.declare(run.Flags())
	c.AddCommand(run)
	return c
}

func (f *cellFlags) declare(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.StringVar(&f.language, "language", "", "`python|javascript|shell` (default python)")
	fs.StringVar(&f.program, "program", "", "interpreter inside (default python3, node or bash)")
	fs.StringSliceVar(&f.preload, "preload", nil, "Python `modules` to load before the first cell")
	fs.StringSliceVar(&f.imports, "imports", nil, "Python `packages` that code may import; a guide, no boundary")
	fs.StringVar(&f.images, "images", "", "`directory` to save images in (default: a new one among temporary files)")
	f.spec.declare(fs)
}

// cellBench is a sandbox with a worker in it, and the cell that is talked to.
type cellBench struct {
	f      *cellFlags
	rt     *belljar.Runtime
	sb     *belljar.Sandbox
	spec   cell.Spec
	worker *cell.Worker
	cell   *cell.Cell
	images int

	stdout, stderr io.Writer
}

// open makes everything that the flags describe.
func (f *cellFlags) open(ctx context.Context) (_ *cellBench, err error) {
	spec, err := f.spec.spec()
	if err != nil {
		return nil, err
	}
	b := &cellBench{f: f, stdout: os.Stdout, stderr: os.Stderr}
	if term.Is(os.Stdout) {
		b.stdout = &term.Filter{W: os.Stdout}
	}
	if term.Is(os.Stderr) {
		b.stderr = &term.Filter{W: os.Stderr}
	}
	// What bounds an execution would bound the interpreter's whole life.
	b.spec = cell.Spec{
		Language: cell.Language(f.language), Program: f.program, Preload: f.preload, Imports: f.imports,
		Limits: cell.Limits{Timeout: spec.Timeout, CPUTime: spec.Limits.CPUTime, Output: spec.Limits.Output},
		Log: func(r cell.Record) {
			fmt.Fprintf(b.stderr, "%s: %s %s\n", r.Level, r.Message, r.Fields)
		},
	}
	spec.Timeout, spec.Limits.CPUTime, spec.Limits.Output = 0, 0, 0
	if b.rt, err = newRuntime(ctx, belljar.Config{}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.rt.Close(context.WithoutCancel(ctx)))
		}
	}()
	stop := term.Progress(os.Stderr, "making the sandbox")
	defer stop()
	if b.sb, err = b.rt.Create(ctx, spec); err != nil {
		return nil, err
	}
	warnDev(os.Stderr, b.sb.Report())
	if b.worker, err = cell.NewWorker(ctx, b.sb, b.spec, 0); err != nil {
		return nil, err
	}
	b.cell, err = b.worker.Open(ctx, b.spec)
	return b, err
}

// close removes everything.
func (b *cellBench) close(ctx context.Context) error {
	return errors.Join(b.worker.Close(ctx), b.rt.Close(ctx))
}

// run runs one piece of code, with Ctrl-C as an interrupt, and shows what comes.
func (b *cellBench) run(ctx context.Context, source string) (*cell.Result, error) {
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, syscall.SIGINT)
	defer signal.Stop(sig)
	done := make(chan struct{})
	defer close(done)
	go func() {
		last := time.Time{}
		for {
			select {
			case <-sig:
				if time.Since(last) < time.Second { // it did not heed the first
					_ = b.cell.Close(ctx) // the operation says that the cell ended
				} else {
					_ = b.cell.Interrupt(ctx) // an error means that it has ended
				}
				last = time.Now()
			case <-done:
				return
			}
		}
	}()
	res, err := b.cell.Run(ctx, cell.Exec{Source: source, Stdout: b.stdout, Stderr: b.stderr, Display: func(d cell.Bundle) { b.show(d) }})
	if err != nil {
		return res, err
	}
	if x := res.Exception; x != nil {
		text := strings.Join(x.Traceback, "\n")
		if text == "" && x.Name != "status" {
			text = x.Error()
		}
		if text != "" {
			fmt.Fprintln(b.stderr, text)
		}
	} else if res.Data != nil {
		b.show(res.Data)
	}
	return res, nil
}

var imageTypes = []struct{ mime, ext string }{{"image/png", ".png"}, {"image/jpeg", ".jpg"}, {"image/svg+xml", ".svg"}}

// show prints a value, or saves it where it is an image.
func (b *cellBench) show(d cell.Bundle) {
	for _, t := range imageTypes {
		if text := d.Text(t.mime); text != "" {
			name, err := b.save(text, t.ext)
			if err != nil {
				fmt.Fprintln(b.stderr, "belljar: "+err.Error())
				return
			}
			fmt.Fprintln(b.stdout, name)
			return
		}
	}
	for _, mime := range []string{"text/markdown", "text/plain", "text/html", "text/latex"} {
		if text := d.Text(mime); text != "" {
			fmt.Fprintln(b.stdout, text)
			return
		}
	}
}

// save writes an image. A guest chose its bytes, and nothing of its name.
func (b *cellBench) save(text, ext string) (string, error) {
	data := []byte(text)
	if ext != ".svg" {
		var err error
		if data, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), "")); err != nil {
			return "", fmt.Errorf("image: %w", err)
		}
	}
	if b.f.images == "" {
		dir, err := os.MkdirTemp("", "belljar-images-")
		if err != nil {
			return "", err
		}
		b.f.images = dir
	}
	b.images++
	name := filepath.Join(b.f.images, strconv.Itoa(b.images)+ext)
	return name, os.WriteFile(name, data, 0o644)
}

// runCell is `belljar cell run`.
func runCell(ctx context.Context, f *cellFlags, file string) (err error) {
	if f.language == "" {
		f.language = languageOf(file)
	}
	var source []byte
	if file == "-" {
		source, err = readAll(os.Stdin)
	} else {
		source, err = os.ReadFile(file)
	}
	if err != nil {
		return err
	}
	b, err := f.open(ctx)
	if err != nil {
		return &exitError{exitInfra, err}
	}
	res, err := b.run(ctx, string(source))
	closeErr := b.close(context.WithoutCancel(ctx))
	if err != nil {
		return &exitError{cellCode(err), errors.Join(err, closeErr)}
	}
	if res.Exception != nil {
		return &exitError{exitFailed, closeErr}
	}
	return closeErr
}

// cellCode is the status for an operation that did not come to its end.
func cellCode(err error) int {
	switch {
	case errors.Is(err, belljar.ErrTimeout):
		return exitTimeout
	case errors.Is(err, belljar.ErrCPU), errors.Is(err, belljar.ErrOOM), errors.Is(err, belljar.ErrOutput):
		return exitLimit
	case errors.Is(err, belljar.ErrCancelled), errors.Is(err, cell.ErrClosed):
		return exitCancelled
	}
	return exitInfra
}

func languageOf(file string) string {
	switch filepath.Ext(file) {
	case ".js", ".mjs", ".cjs":
		return string(cell.JavaScript)
	case ".sh", ".bash":
		return string(cell.Shell)
	}
	return string(cell.Python)
}

// talk is `belljar cell`.
func talk(ctx context.Context, f *cellFlags) (err error) {
	b, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close(context.WithoutCancel(ctx))) }()
	var in lines = &plainLines{bufio.NewScanner(os.Stdin)}
	if term.Is(os.Stdin) && term.Is(os.Stdout) {
		in = newEditor()
	}
	language := b.cell.Language()
	for {
		source, err := readPiece(in, language)
		if err == io.EOF && source == "" {
			return nil
		}
		if err != nil && err != io.EOF {
			return err
		}
		switch strings.TrimSpace(source) {
		case "":
			continue
		case ":quit":
			return nil
		case ":reset":
			if err := b.cell.Reset(ctx); err != nil {
				return err
			}
			continue
		}
		if _, err := b.run(ctx, source); err != nil {
			fmt.Fprintln(b.stderr, "belljar: "+oneLine(err))
			if err := b.again(ctx); err != nil {
				return err
			}
		}
	}
}

// again opens another cell when the last one has ended.
func (b *cellBench) again(ctx context.Context) error {
	if b.cell.Err() == nil {
		return nil
	}
	<-b.cell.Done()
	c, err := b.worker.Open(ctx, b.spec)
	if err == nil {
		b.cell = c
		fmt.Fprintln(b.stderr, "belljar: a new interpreter: what was remembered is gone")
	}
	return err
}
