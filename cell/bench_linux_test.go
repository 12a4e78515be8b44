package cell_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"belljar"
	"belljar/cell"
)

// preload is what the benchmarks of new cells load ahead.
var preload = []string{"json", "re", "math", "datetime", "collections", "itertools", "functools", "random", "decimal", "statistics"}

func BenchmarkExec(b *testing.B) {
	for _, s := range []struct {
		language cell.Language
		source   string
	}{{cell.Python, "1+1"}, {cell.JavaScript, "1+1"}, {cell.Shell, ":"}} {
		b.Run(string(s.language), func(b *testing.B) {
			c := open(b, sandbox(b, belljar.Spec{}), cell.Spec{Language: s.language})
			for b.Loop() {
				if _, err := c.Exec(b.Context(), s.source); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPostRecv(b *testing.B) {
	c := open(b, sandbox(b, belljar.Spec{}), cell.Spec{})
	go func() {
		_, _ = c.Exec(context.Background(), "while True: cell.post(cell.recv())") // ends with the cell
	}()
	message := strings.Repeat("x", 1022)
	for b.Loop() {
		if err := c.Post(b.Context(), message); err != nil {
			b.Fatal(err)
		}
		if _, err := c.Recv(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen is a new cell from a zygote, to its first answer and its end.
func BenchmarkOpen(b *testing.B) {
	for _, spares := range []int{0, 4} {
		b.Run("spares="+strconv.Itoa(spares), func(b *testing.B) {
			sb := sandbox(b, belljar.Spec{})
			w, err := cell.NewWorker(b.Context(), sb, cell.Spec{Preload: preload}, spares)
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close(context.Background())
			var first time.Duration
			for b.Loop() {
				start := time.Now()
				c, err := w.Open(b.Context(), cell.Spec{})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := c.Exec(b.Context(), "1+1"); err != nil {
					b.Fatal(err)
				}
				first += time.Since(start)
				if err := c.Close(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(first.Nanoseconds())/float64(b.N), "ns/first-answer")
		})
	}
}

// BenchmarkOpenParallel is as many new cells as eight callers get.
func BenchmarkOpenParallel(b *testing.B) {
	w, err := cell.NewWorker(b.Context(), sandbox(b, belljar.Spec{}), cell.Spec{Preload: preload}, 8)
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close(context.Background())
	b.SetParallelism(4) // times two processors
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			c, err := w.Open(b.Context(), cell.Spec{})
			if err != nil {
				b.Error(err)
				return
			}
			if _, err := c.Exec(b.Context(), "1+1"); err != nil {
				b.Error(err)
			}
			if err := c.Close(b.Context()); err != nil {
				b.Error(err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cells/s")
}
