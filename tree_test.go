package belljar_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"testing"

	"belljar"
	"belljar/backend/fake"
)

// FuzzUploadTar: whatever the stream, it unpacks below its directory or is
// refused as a whole.
func FuzzUploadTar(f *testing.F) {
	for _, h := range []tar.Header{
		{Name: "f", Typeflag: tar.TypeReg, Size: 3},
		{Name: "../f", Typeflag: tar.TypeReg, Size: 3},
		{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/tmp"},
		{Name: "h", Typeflag: tar.TypeLink, Linkname: "f"},
		{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "c", Typeflag: tar.TypeChar},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&h); err != nil {
			f.Fatal(err)
		}
		if h.Size > 0 {
			_, _ = w.Write([]byte("abc"))
		}
		_ = w.Close()
		f.Add(b.Bytes())
	}
	rt, _ := open(f, belljar.Config{}, fake.Config{})
	sb := create(f, rt, belljar.Spec{})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<20 {
			t.Skip("large streams are for the conformance suite")
		}
		err := sb.UploadTar(t.Context(), bytes.NewReader(data), "up")
		if err != nil && !errors.Is(err, belljar.ErrFS) {
			t.Errorf("%v, want FS_ERROR", err)
		}
		list, lerr := sb.List("up")
		if lerr != nil && !errors.Is(lerr, fs.ErrNotExist) {
			t.Fatal(lerr)
		}
		if err != nil && len(list) > 0 {
			t.Errorf("refused with %v, and left %v", err, list)
		}
		for _, dir := range []string{".", "/tmp", "/home/user"} {
			l, err := sb.List(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range l {
				if dir != "." || e.Name() != "up" {
					t.Errorf("%s in %s", e.Name(), dir)
				}
			}
		}
		if err := sb.RemoveAll("up"); err != nil {
			t.Fatal(err)
		}
	})
}
