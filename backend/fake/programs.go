package fake

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

var builtin = map[string]Program{
	"true":  func(context.Context, *Proc) int { return 0 },
	"false": func(context.Context, *Proc) int { return 1 },
	"echo": func(_ context.Context, p *Proc) int {
		return status(fmt.Fprintln(p.Stdout, strings.Join(p.Args[1:], " ")))
	},
	"cat": cat,
	"sleep": func(ctx context.Context, p *Proc) int {
		if len(p.Args) != 2 {
			return usage(p, "sleep: want one duration")
		}
		arg := p.Args[1]
		if strings.Trim(arg, "0123456789.") == "" {
			arg += "s"
		}
		d, err := time.ParseDuration(arg)
		if err != nil {
			return usage(p, "sleep: "+err.Error())
		}
		p.Sleep(ctx, d)
		return 0
	},
	"env": func(_ context.Context, p *Proc) int {
		return status(fmt.Fprintln(p.Stdout, strings.Join(p.Env, "\n")))
	},
	"pwd": func(_ context.Context, p *Proc) int { return status(fmt.Fprintln(p.Stdout, p.Dir)) },
}

func status(_ int, err error) int {
	if err != nil {
		return 1
	}
	return 0
}

func usage(p *Proc, message string) int {
	_, _ = fmt.Fprintln(p.Stderr, message)
	return 2
}

func cat(_ context.Context, p *Proc) int {
	names := p.Args[1:]
	if len(names) == 0 {
		names = []string{"-"}
	}
	code := 0
	for _, name := range names {
		if err := catOne(p, name); err != nil {
			_, _ = fmt.Fprintln(p.Stderr, "cat:", err)
			code = 1
		}
	}
	return code
}

func catOne(p *Proc, name string) error {
	if name == "-" {
		_, err := io.Copy(p.Stdout, p.Stdin)
		return err
	}
	if !strings.HasPrefix(name, "/") {
		name = p.Dir + "/" + name
	}
	f, err := p.Files.OpenFile(name, 0, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(p.Stdout, f)
	return err
}
