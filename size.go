package belljar

import (
	"bytes"
	"encoding/json"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// units are the units of [Size] by name. All are 1024-based: KB is KiB.
var units = map[string]Size{
	"B": 1, "KB": KiB, "KiB": KiB, "MB": MiB, "MiB": MiB, "GB": GiB, "GiB": GiB,
}

const (
	sizeHint     = "write whole bytes, or a number and B, KB, MB, GB, KiB, MiB or GiB without a space, such as 256MiB"
	durationHint = "write whole milliseconds, or a duration such as 1.5s, 250ms or 2h45m"
)

// ParseSize reads a size: decimal digits for bytes, or a decimal number and one
// of the units B KB MB GB KiB MiB GiB, directly after it and in this spelling.
// A fraction needs a unit and must come to whole bytes ("1.5GiB"). Signs, inner
// or outer spaces, leading zeros, exponents and other spellings are refused with
// [CodeInvalidSpec], as is anything above 2^63-1 bytes.
func ParseSize(s string) (Size, error) {
	if s == "" {
		return 0, invalidValue("size", "is empty", s, sizeHint)
	}
	// Longer than any exact size can be written; keeps the arithmetic below small.
	if len(s) > 64 {
		return 0, invalidValue("size", "is too long", s[:64]+"...", sizeHint)
	}
	whole, rest := leadingDigits(s)
	if whole == "" {
		return 0, invalidValue("size", "is not a size", s, sizeHint)
	}
	if len(whole) > 1 && whole[0] == '0' {
		return 0, invalidValue("size", "has a leading zero", s, sizeHint)
	}
	number := whole
	fraction := ""
	if strings.HasPrefix(rest, ".") {
		fraction, rest = leadingDigits(rest[1:])
		if fraction == "" {
			return 0, invalidValue("size", "is not a size", s, sizeHint)
		}
		number += "." + fraction
	}
	unit := Size(1)
	if rest != "" {
		u, ok := units[rest]
		if !ok {
			return 0, invalidValue("size", "has an unknown unit "+strconv.Quote(rest), s, sizeHint)
		}
		unit = u
	} else if fraction != "" {
		return 0, invalidValue("size", "is a fraction without a unit", s, sizeHint)
	}
	r, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, invalidValue("size", "is not a size", s, sizeHint)
	}
	r.Mul(r, new(big.Rat).SetInt64(int64(unit)))
	if !r.IsInt() {
		return 0, invalidValue("size", "is not a whole number of bytes", s, sizeHint)
	}
	if !r.Num().IsInt64() {
		return 0, invalidValue("size", "is too large", s, sizeHint)
	}
	return Size(r.Num().Int64()), nil
}

// leadingDigits splits s after its leading decimal digits.
func leadingDigits(s string) (digits, rest string) {
	i := 0
	for i < len(s) && '0' <= s[i] && s[i] <= '9' {
		i++
	}
	return s[:i], s[i:]
}

// String returns the size with the largest unit that is exact: "256MiB", "1000B".
// [ParseSize] reads it back.
func (s Size) String() string {
	for _, u := range []struct {
		name string
		size Size
	}{{"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}} {
		if s != 0 && s%u.size == 0 {
			return strconv.FormatInt(int64(s/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

// MarshalText returns String, so that a Size can be a command-line flag.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is [ParseSize].
func (s *Size) UnmarshalText(text []byte) error {
	v, err := ParseSize(string(text))
	if err != nil {
		return err
	}
	*s = v
	return nil
}

// MarshalJSON returns the size as an integer, in bytes.
func (s Size) MarshalJSON() ([]byte, error) {
	return strconv.AppendInt(nil, int64(s), 10), nil
}

// UnmarshalJSON reads an integer or a string as [ParseSize] does.
func (s *Size) UnmarshalJSON(data []byte) error {
	data = bytes.TrimSpace(data)
	text := string(data)
	if len(data) > 0 && data[0] == '"' {
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
	} else if digits, rest := leadingDigits(text); digits == "" || rest != "" {
		return invalidValue("size", "is not a size", text, sizeHint)
	}
	return s.UnmarshalText([]byte(text))
}

// ParseDuration reads a duration: decimal digits for milliseconds, or Go's
// syntax of [time.ParseDuration]. It is never negative: signs are refused with
// [CodeInvalidSpec], as are spaces, leading zeros of a number without a unit,
// anything above 2^63-1 ns, and what is written larger than zero but is less
// than a nanosecond.
func ParseDuration(s string) (time.Duration, error) {
	switch {
	case s == "":
		return 0, invalidValue("duration", "is empty", s, durationHint)
	case len(s) > 64:
		return 0, invalidValue("duration", "is too long", s[:64]+"...", durationHint)
	case s[0] == '-' || s[0] == '+':
		return 0, invalidValue("duration", "has a sign", s, durationHint)
	}
	if digits, rest := leadingDigits(s); rest == "" {
		if len(digits) > 1 && digits[0] == '0' {
			return 0, invalidValue("duration", "has a leading zero", s, durationHint)
		}
		ms, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || ms > int64(1<<63-1)/int64(time.Millisecond) {
			return 0, invalidValue("duration", "is too large", s, durationHint)
		}
		return time.Duration(ms) * time.Millisecond, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		e := invalidValue("duration", "is not a duration", s, durationHint)
		e.Err = err
		return 0, e
	}
	if d == 0 && strings.ContainsAny(s, "123456789") {
		return 0, invalidValue("duration", "is less than a nanosecond", s, durationHint)
	}
	return d, nil
}

// invalidValue is the error for a value that cannot be read, before the field
// that holds it is known.
func invalidValue(kind, what, got, hint string) *Error {
	return &Error{
		Code: CodeInvalidSpec, Op: kind, Message: strconv.Quote(got) + " " + what,
		Observed: got, Hint: hint,
	}
}
