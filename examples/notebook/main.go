//go:build linux

// Notebook runs the code cells of a Jupyter notebook in one interpreter, whose code is
// a stranger's, and prints what each shows; images are saved beside. A cell that runs
// too long ends the interpreter, not the notebook: the next one gets another.
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"belljar"
	"belljar/backend/native"
	"belljar/cell"
)

// notebook is as much of the format as is needed here.
type notebook struct {
	Cells []struct {
		CellType string   `json:"cell_type"`
		Source   []string `json:"source"`
	} `json:"cells"`
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: notebook FILE.ipynb IMAGES")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "notebook:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, file, images string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var nb notebook
	if err := json.Unmarshal(text, &nb); err != nil {
		return err
	}
	rt, err := belljar.New(ctx, belljar.Config{}, native.New(native.Config{}))
	if err != nil {
		return err
	}
	defer rt.Close(ctx)
	sb, err := rt.Create(ctx, belljar.Spec{Limits: belljar.Limits{Memory: 512 * belljar.MiB}})
	if err != nil {
		return err
	}
	// The worker's interpreter is loaded once; each cell is forked from it.
	spec := cell.Spec{Limits: cell.Limits{Timeout: 2 * time.Second, Output: belljar.MiB}}
	worker, err := cell.NewWorker(ctx, sb, spec, 1)
	if err != nil {
		return err
	}
	defer worker.Close(ctx)
	var c *cell.Cell
	for n, code := range nb.Cells {
		if code.CellType != "code" {
			continue
		}
		if c == nil || c.Err() != nil {
			if c, err = worker.Open(ctx, spec); err != nil {
				return err
			}
		}
		res, err := c.Exec(ctx, strings.Join(code.Source, ""))
		fmt.Printf("[%d] %s", n+1, res.Stdout)
		for i, d := range append(res.Displays, res.Data) {
			if png, err := base64.StdEncoding.DecodeString(d.Text("image/png")); err == nil && len(png) > 0 {
				name := fmt.Sprintf("%d-%d.png", n+1, i+1)
				if err := os.WriteFile(filepath.Join(images, name), png, 0o644); err != nil {
					return err
				}
				fmt.Print(name)
			} else {
				fmt.Print(d.Text("text/plain"))
			}
		}
		switch {
		case err != nil: // a limit: the variables are gone
			fmt.Print(err)
		case res.Exception != nil: // the code raised: they are still there
			fmt.Print(res.Exception)
		}
		fmt.Println()
	}
	return nil
}
