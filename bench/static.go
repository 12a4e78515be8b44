package bench

import (
	"encoding/binary"
	"fmt"
	"runtime"

	"belljar"
)

// staticTrue is a whole program that does nothing but exit_group(0): what an
// execution costs without the start-up of a libc. It is written out byte by byte
// so that no compiler is needed where it is measured.
func staticTrue(arch string) ([]byte, error) {
	const (
		base   = 0x400000
		header = 64 + 56 // ELF header, one program header
	)
	var machine uint16
	var code []byte
	switch arch {
	case "amd64":
		machine = 62 // EM_X86_64
		code = []byte{
			0x31, 0xff, // xor edi, edi
			0xb8, 0xe7, 0, 0, 0, // mov eax, 231
			0x0f, 0x05, // syscall
		}
	case "arm64":
		machine = 183 // EM_AARCH64
		for _, ins := range []uint32{
			0xd2800000, // mov x0, 0
			0xd2800bc8, // mov x8, 94
			0xd4000001, // svc 0
		} {
			code = binary.LittleEndian.AppendUint32(code, ins)
		}
	default:
		return nil, &belljar.Error{Code: belljar.CodeUnsupported, Op: "bench", Message: fmt.Sprintf("no static program for %s", arch)}
	}
	le := binary.LittleEndian
	b := append([]byte("\x7fELF"), 2 /* 64 bit */, 1 /* little endian */, 1 /* version */, 0)
	b = append(b, make([]byte, 8)...)
	b = le.AppendUint16(b, 2) // ET_EXEC
	b = le.AppendUint16(b, machine)
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+header) // entry
	b = le.AppendUint64(b, 64)          // program headers
	b = le.AppendUint64(b, 0)           // no sections
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{64, 56, 1, 64, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	size := uint64(header + len(code))
	b = le.AppendUint32(b, 1) // PT_LOAD
	b = le.AppendUint32(b, 5) // read, execute
	for _, v := range []uint64{0, base, base, size, size, 0x10000} {
		b = le.AppendUint64(b, v)
	}
	return append(b, code...), nil
}

// StaticTrue is a program for this machine that ends at once, without any library.
func StaticTrue() ([]byte, error) { return staticTrue(runtime.GOARCH) }
