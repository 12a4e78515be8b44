// Command gen writes what is generated from package belljar's Go types and
// tables: the JSON Schemas and the error table in spec/, and docs/errors.md. It is
// run by go generate in the root of the module, and writes nowhere else.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	files, err := generate(".")
	if err == nil {
		err = write(".", files)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// generate returns the contents of every generated file by its path below the
// root of the module, where the sources are read.
func generate(root string) (map[string][]byte, error) {
	src, err := parseSource(root)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{"docs/errors.md": errorsPage()}
	if files["spec/errors.json"], err = errorsJSON(); err != nil {
		return nil, err
	}
	if files["spec/spec.schema.json"], err = specSchema(src); err != nil {
		return nil, err
	}
	if files["spec/result.schema.json"], err = resultSchema(src); err != nil {
		return nil, err
	}
	return files, nil
}

func write(root string, files map[string][]byte) error {
	for name, data := range files {
		name = filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
