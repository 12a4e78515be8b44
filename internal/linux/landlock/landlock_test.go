package landlock

import (
	"errors"
	"math/bits"
	"testing"
)

func TestAccessSets(t *testing.T) {
	for abi := 0; abi <= 9; abi++ {
		handled := Handled(abi)
		for name, a := range map[string]Access{
			"ReadOnly": ReadOnly(abi), "ReadExec": ReadExec(abi), "ReadWrite": ReadWrite(abi), "DeviceRW": DeviceRW(abi),
		} {
			if a&^handled != 0 {
				t.Errorf("ABI %d: %s has %#x, which is not handled", abi, name, a&^handled)
			}
			if abi > 0 && a == 0 {
				t.Errorf("ABI %d: %s is empty", abi, name)
			}
			if a&(MakeChar|MakeBlock) != 0 {
				t.Errorf("ABI %d: %s makes device nodes", abi, name)
			}
		}
		if ReadOnly(abi)&(WriteFile|Execute|Truncate|MakeReg|RemoveFile|Refer) != 0 {
			t.Errorf("ABI %d: ReadOnly is %#x", abi, ReadOnly(abi))
		}
		if DeviceRW(abi)&(Execute|MakeReg|RemoveFile|Refer) != 0 {
			t.Errorf("ABI %d: DeviceRW is %#x", abi, DeviceRW(abi))
		}
	}
	// The number of rights by include/uapi/linux/landlock.h.
	for abi, want := range []int{0, 13, 14, 15, 15, 16, 16, 16} {
		if got := bits.OnesCount64(uint64(Handled(abi))); got != want {
			t.Errorf("ABI %d handles %d rights, want %d", abi, got, want)
		}
	}
	if a := ReadWrite(7); a&Refer == 0 || a&Truncate == 0 || a&Execute == 0 {
		t.Errorf("ReadWrite is %#x", a)
	}
}

func TestSupportedAndABIAgree(t *testing.T) {
	err := Supported()
	if (err == nil) != (ABI() > 0) {
		t.Fatalf("Supported %v, ABI %d", err, ABI())
	}
	if unsupported := (*UnsupportedError)(nil); err != nil && (!errors.As(err, &unsupported) || unsupported.Needs == "") {
		t.Fatalf("%#v says not what it needs", err)
	}
}
