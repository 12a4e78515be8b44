package cell_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"belljar"
	"belljar/cell"
)

func newFabric(t testing.TB, rt *belljar.Runtime, cfg cell.FabricConfig) *cell.Fabric {
	t.Helper()
	cfg.Runtime = rt
	f, err := cell.NewFabric(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(context.Background()); err != nil {
			t.Errorf("close the fabric: %v", err)
		}
	})
	return f
}

func from(t testing.TB, f *cell.Fabric, tenant, template string) *cell.Cell {
	t.Helper()
	c, err := f.Open(within(t), tenant, template, cell.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func quit(t testing.TB, c *cell.Cell) {
	t.Helper()
	if err := c.Close(within(t)); err != nil {
		t.Error(err)
	}
}

// TestFabricPlacement: never two tenants in one worker, the emptiest first, and no more
// workers than there may be.
func TestFabricPlacement(t *testing.T) {
	rt := newRuntime(t)
	f := newFabric(t, rt, cell.FabricConfig{MaxWorkers: 3, Queue: -1, Templates: map[string]cell.Template{
		"py": {Cells: 2, Spares: 1}, "js": {Cell: cell.Spec{Language: cell.JavaScript}},
	}})
	var cells []*cell.Cell
	for _, tenant := range []string{"a", "b", "a", "a", "b"} {
		cells = append(cells, from(t, f, tenant, "py"))
	}
	st := f.Status()
	got := map[string]int{}
	for _, w := range st.Workers {
		got[fmt.Sprintf("%s %d/%d", w.Tenant, w.Cells, w.Room)]++
	}
	if len(st.Workers) != 3 || got["a 2/2"] != 1 || got["a 1/2"] != 1 || got["b 2/2"] != 1 {
		t.Errorf("workers %v", got)
	}
	for _, sb := range rt.List() {
		if n := sb.Tenant(); n != "a" && n != "b" {
			t.Errorf("a worker of tenant %q", n)
		}
	}
	if _, err := f.Open(within(t), "c", "py", cell.Spec{}); !errors.Is(err, belljar.ErrQuotaExceeded) {
		t.Errorf("a fourth worker: %v", err)
	}
	if _, err := f.Open(within(t), "a", "no", cell.Spec{}); !errors.Is(err, belljar.ErrNotFound) {
		t.Errorf("no template: %v", err)
	}
	// The last of worker a 1/2 goes, and a third tenant gets its slot.
	for _, c := range []*cell.Cell{cells[0], cells[2], cells[3]} {
		quit(t, c)
	}
	c := from(t, f, "c", "py")
	if got := eval(t, c, "1+1"); got != "2" {
		t.Errorf("%s", got)
	}
	if _, err := cell.NewFabric(cell.FabricConfig{Runtime: rt, Templates: map[string]cell.Template{"js": {Cells: 2, Cell: cell.Spec{Language: cell.JavaScript}}}}); !errors.Is(err, belljar.ErrInvalidSpec) {
		t.Errorf("two cells of JavaScript in a worker: %v", err)
	}
}

// TestFabricQueue: who finds no place waits for one, and gets it in the order of coming.
func TestFabricQueue(t *testing.T) {
	f := newFabric(t, newRuntime(t), cell.FabricConfig{MaxWorkers: 1, Queue: 2, Templates: map[string]cell.Template{"py": {Cells: 1, Spares: -1}}})
	first := from(t, f, "a", "py")
	order := make(chan int, 2)
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			c, err := f.Open(within(t), "a", "py", cell.Spec{})
			if err != nil {
				t.Error(err)
				return
			}
			order <- i
			quit(t, c)
		})
		for f.Status().Waiting != i+1 {
			time.Sleep(time.Millisecond)
		}
	}
	if _, err := f.Open(within(t), "a", "py", cell.Spec{}); !errors.Is(err, belljar.ErrQuotaExceeded) {
		t.Errorf("beyond the queue: %v", err)
	}
	quit(t, first)
	wg.Wait()
	if a, b := <-order, <-order; a != 0 || b != 1 {
		t.Errorf("served %d, %d", a, b)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	held := from(t, f, "a", "py")
	if _, err := f.Open(ctx, "a", "py", cell.Spec{}); !errors.Is(err, belljar.ErrCancelled) || f.Status().Waiting != 0 {
		t.Errorf("cancelled in the queue: %v, %+v", err, f.Status())
	}
	// Drain waits for what is open, and refuses what comes.
	drained := make(chan error, 1)
	go func() { drained <- f.Drain(within(t)) }()
	for !f.Status().Draining {
		time.Sleep(time.Millisecond)
	}
	if _, err := f.Open(within(t), "a", "py", cell.Spec{}); !errors.Is(err, belljar.ErrUnavailable) {
		t.Errorf("while draining: %v", err)
	}
	if got := eval(t, held, "3"); got != "3" {
		t.Errorf("%s", got)
	}
	quit(t, held)
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// TestFabricReplaces: a worker that dies answers its waiters and another takes its
// place; one that had its share is retired and goes when it is empty.
func TestFabricReplaces(t *testing.T) {
	rt := newRuntime(t)
	f := newFabric(t, rt, cell.FabricConfig{MaxWorkers: 2, Templates: map[string]cell.Template{
		"py": {Cells: 4, Spares: 1}, "few": {Cells: 4, Spares: 1, RecycleCells: 2}, "fat": {Cells: 4, Spares: -1, RecycleBytes: 64 * belljar.MiB},
	}})
	if err := f.Prewarm(within(t), "a", "py", 1); err != nil {
		t.Fatal(err)
	}
	c := from(t, f, "a", "py")
	got := make(chan error, 1)
	go func() {
		_, err := c.Exec(within(t), "import time; time.sleep(60)")
		got <- err
	}()
	old := f.Status().Workers[0].Sandbox
	sb, err := rt.Get(old)
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Destroy(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-got; !errors.Is(err, cell.ErrWorkerDied) {
		t.Errorf("the waiter got %v", err)
	}
	for st := f.Status(); len(st.Workers) != 1 || st.Workers[0].Sandbox == old || st.Died != 1; st = f.Status() {
		time.Sleep(5 * time.Millisecond)
	}
	if got := eval(t, from(t, f, "a", "py"), "1+1"); got != "2" {
		t.Errorf("the next worker says %s", got)
	}

	one, two := from(t, f, "a", "few"), from(t, f, "a", "few")
	st := f.Status()
	if len(st.Workers) != 2 || st.Recycled != 1 {
		t.Errorf("%+v", st)
	}
	quit(t, one)
	if got := eval(t, two, "5"); got != "5" {
		t.Errorf("a retired worker's cell says %s", got)
	}
	quit(t, two)
	for len(f.Status().Workers) != 1 {
		time.Sleep(5 * time.Millisecond)
	}

	fat := from(t, f, "a", "fat")
	exec(t, fat, "x = b'x' * (100 << 20)")
	quit(t, fat)
	for st := f.Status(); len(st.Workers) != 1 || st.Recycled != 2; st = f.Status() {
		time.Sleep(5 * time.Millisecond)
	}
}

// TestFabricLoad: many callers, many short cells, some of them hostile.
func TestFabricLoad(t *testing.T) {
	f := newFabric(t, newRuntime(t), cell.FabricConfig{MaxWorkers: 2, Templates: map[string]cell.Template{
		"py": {Cells: 8, Spares: 4, Cell: cell.Spec{Limits: cell.Limits{Timeout: 300 * time.Millisecond}}},
	}})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 12 {
				c, err := f.Open(within(t), fmt.Sprintf("t%d", i%2), "py", cell.Spec{})
				if err != nil {
					t.Error(err)
					return
				}
				switch j % 4 {
				case 1:
					if _, err := c.Exec(within(t), "import os; os.write(3, b'x')\nwhile True: pass"); !errors.Is(err, cell.ErrProtocol) {
						t.Errorf("garbage: %v", err)
					}
				case 2:
					if i == 0 {
						if _, err := c.Exec(within(t), "while True: pass"); !errors.Is(err, belljar.ErrTimeout) {
							t.Errorf("spin: %v", err)
						}
					}
				default:
					if res, err := c.Exec(within(t), fmt.Sprintf("%d * %d", i, j)); err != nil || string(res.Value) != fmt.Sprint(i*j) {
						t.Errorf("%d * %d: %+v, %v", i, j, res, err)
					}
				}
				quit(t, c)
			}
		})
	}
	wg.Wait()
	st := f.Status()
	if st.Died != 0 || len(st.Workers) != 2 {
		t.Errorf("%+v", st)
	}
}

// TestManyCells: two hundred cells on one worker.
func TestManyCells(t *testing.T) {
	if testing.Short() {
		t.Skip("two hundred interpreters are too many for short mode")
	}
	sb := sandbox(t, belljar.Spec{})
	has(t, sb, "python3")
	w, err := cell.NewWorker(within(t), sb, cell.Spec{Private: true}, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close(context.Background())
	const n = 200
	cells := make([]*cell.Cell, n)
	for i := range cells {
		if cells[i], err = w.Open(within(t), cell.Spec{}); err != nil {
			t.Fatalf("cell %d: %v", i, err)
		}
		exec(t, cells[i], fmt.Sprintf("x = %d", i))
	}
	for i, c := range cells {
		if got := eval(t, c, "x"); got != fmt.Sprint(i) {
			t.Errorf("cell %d says %s", i, got)
		}
	}
	if err := w.Close(within(t)); err != nil {
		t.Error(err)
	}
}
