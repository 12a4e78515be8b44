// Package wire turns what package belljar speaks of into the messages of the API
// and back: errors, results, reports, specs, file descriptions. Server and client
// share it, so that neither side can know a field that the other does not. It
// does no input or output.
package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"syscall"
	"time"

	"belljar"
	v1 "belljar/api/belljar/v1"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Error is the message of an error; nil for none. What is no [belljar.Error] is
// INTERNAL, with its text.
func Error(err error) *v1.Error {
	if err == nil {
		return nil
	}
	e := (*belljar.Error)(nil)
	if !errors.As(err, &e) {
		return &v1.Error{Code: string(belljar.CodeInternal), Message: Text(err.Error())}
	}
	msg := e.Message
	if msg == "" && e.Err != nil {
		msg = e.Err.Error()
	}
	return &v1.Error{
		Code: string(e.Code), Op: Text(e.Op), Message: Text(msg), Limit: Text(e.Limit), Observed: Text(e.Observed),
		Recoverable: e.Recoverable, Hint: Text(e.Hint), Errno: int32(Errno(err)),
	}
}

// FromError is the error of a message; nil for none. Its cause is the errno of
// the other side, so that it matches fs.ErrNotExist and the like.
func FromError(m *v1.Error) *belljar.Error {
	if m == nil {
		return nil
	}
	e := &belljar.Error{
		Code: belljar.Code(m.Code), Op: m.Op, Message: m.Message, Limit: m.Limit, Observed: m.Observed,
		Recoverable: m.Recoverable, Hint: m.Hint,
	}
	if m.Errno > 0 {
		e.Err = syscall.Errno(m.Errno)
	}
	return e
}

// Errno is the system's error number that err comes from, or 0. Those of package
// io/fs that have no number get the usual one.
func Errno(err error) syscall.Errno {
	if n := syscall.Errno(0); errors.As(err, &n) {
		return n
	}
	for _, c := range []struct {
		err error
		n   syscall.Errno
	}{
		{fs.ErrNotExist, syscall.ENOENT},
		{fs.ErrExist, syscall.EEXIST},
		{fs.ErrPermission, syscall.EACCES},
		{fs.ErrInvalid, syscall.EINVAL},
		{fs.ErrClosed, syscall.EBADF},
	} {
		if errors.Is(err, c.err) {
			return c.n
		}
	}
	return 0
}

// Time is the message of a time; nil for the zero time.
func Time(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// FromTime is the time of a message; zero for none.
func FromTime(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// Duration is the message of a duration; nil for 0.
func Duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// FromDuration is the duration of a message. One that is negative, malformed or
// beyond 290 years is INVALID_SPEC.
func FromDuration(field string, d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if d.CheckValid() != nil || d.Seconds < 0 || d.Nanos < 0 || d.Seconds > math.MaxInt64/int64(time.Second)-1 {
		return 0, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "request " + field, Message: "not a duration from 0 to 290 years", Recoverable: true}
	}
	return d.AsDuration(), nil
}

// Struct is a value, which has to become a JSON object, as message.
func Struct(v any) (*structpb.Struct, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, err
	}
	return structpb.NewStruct(m)
}

// Spec parses the spec of a request: the one schema, strict.
func Spec(m *structpb.Struct) (belljar.Spec, error) {
	if m == nil {
		return belljar.Spec{}, nil
	}
	b, err := json.Marshal(m.AsMap()) // protojson writes large integers with an exponent
	if err != nil {
		return belljar.Spec{}, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "spec", Message: err.Error()}
	}
	return belljar.ParseSpec(b, "spec")
}

// Limits parses limits of a request: those of the spec's schema, strict.
func Limits(m *structpb.Struct) (belljar.Limits, error) {
	if m == nil {
		return belljar.Limits{}, nil
	}
	s, err := Spec(&structpb.Struct{Fields: map[string]*structpb.Value{"limits": structpb.NewStructValue(m)}})
	return s.Limits, err
}

// Report is the message of a confinement report.
func Report(r belljar.Report) *v1.Report {
	m := &v1.Report{Mode: string(r.Mode), Layers: make([]*v1.LayerReport, len(r.Layers))}
	for i, l := range r.Layers {
		m.Layers[i] = Layer(l)
	}
	return m
}

// Layer is the message of one layer.
func Layer(l belljar.LayerReport) *v1.LayerReport {
	return &v1.LayerReport{Layer: string(l.Layer), Status: string(l.Status), Detail: l.Detail, Reason: l.Reason, Source: l.Source}
}

// FromReport is the confinement report of a message.
func FromReport(m *v1.Report) belljar.Report {
	if m == nil {
		return belljar.Report{}
	}
	return belljar.Report{Mode: belljar.Mode(m.Mode), Layers: FromLayers(m.Layers)}
}

// FromLayers are the layers of messages.
func FromLayers(ms []*v1.LayerReport) []belljar.LayerReport {
	ls := make([]belljar.LayerReport, len(ms))
	for i, l := range ms {
		ls[i] = belljar.LayerReport{Layer: belljar.Layer(l.Layer), Status: belljar.Applied(l.Status), Detail: l.Detail, Reason: l.Reason, Source: l.Source}
	}
	return ls
}

// Usage is the message of what was used.
func Usage(u belljar.Usage) *v1.Usage {
	return &v1.Usage{
		CpuTimeMs: u.CPUTimeMs, UserMs: u.UserMs, SystemMs: u.SystemMs, PeakMemoryBytes: u.PeakMemoryBytes,
		PeakPids: u.PeakPids, IoReadBytes: u.IOReadBytes, IoWriteBytes: u.IOWriteBytes,
	}
}

// FromUsage is the usage of a message.
func FromUsage(m *v1.Usage) belljar.Usage {
	if m == nil {
		return belljar.Usage{}
	}
	return belljar.Usage{
		CPUTimeMs: m.CpuTimeMs, UserMs: m.UserMs, SystemMs: m.SystemMs, PeakMemoryBytes: m.PeakMemoryBytes,
		PeakPids: m.PeakPids, IOReadBytes: m.IoReadBytes, IOWriteBytes: m.IoWriteBytes,
	}
}

// Result is the message of a result.
func Result(r *belljar.Result) *v1.Result {
	if r == nil {
		return nil
	}
	m := &v1.Result{
		Id: r.ID, State: string(r.State), Cause: string(r.Cause), ExitCode: new(int32(r.ExitCode)), Signal: r.Signal,
		Stdout: r.Stdout, Stderr: r.Stderr, Truncated: r.Truncated, DroppedBytes: r.DroppedBytes,
		StartedAt: Time(r.StartedAt), FinishedAt: Time(r.FinishedAt), DurationMs: r.DurationMs,
		Timings: &v1.Timings{
			QueueUs: r.Timings.QueueUs, SpawnUs: r.Timings.SpawnUs, RunUs: r.Timings.RunUs,
			ReapUs: r.Timings.ReapUs, DrainUs: r.Timings.DrainUs,
		},
		Usage: Usage(r.Usage), Confinement: Report(r.Confinement), Backend: r.Backend, SpecVersion: r.SpecVersion,
	}
	if r.Error != nil {
		m.Error = Error(r.Error)
	}
	return m
}

// FromResult is the result of a message.
func FromResult(m *v1.Result) *belljar.Result {
	if m == nil {
		return nil
	}
	t := m.GetTimings()
	return &belljar.Result{
		ID: m.Id, State: belljar.State(m.State), Cause: belljar.Cause(m.Cause), ExitCode: int(m.GetExitCode()), Signal: m.Signal,
		Stdout: m.Stdout, Stderr: m.Stderr, Truncated: m.Truncated, DroppedBytes: m.DroppedBytes,
		StartedAt: FromTime(m.StartedAt), FinishedAt: FromTime(m.FinishedAt), DurationMs: m.DurationMs,
		Timings: belljar.Timings{
			QueueUs: t.GetQueueUs(), SpawnUs: t.GetSpawnUs(), RunUs: t.GetRunUs(), ReapUs: t.GetReapUs(), DrainUs: t.GetDrainUs(),
		},
		Usage: FromUsage(m.Usage), Confinement: FromReport(m.Confinement), Backend: m.Backend, SpecVersion: m.SpecVersion,
		Error: FromError(m.Error),
	}
}

// Types of files.
var types = []struct {
	name string
	mode fs.FileMode
}{
	{"file", 0},
	{"directory", fs.ModeDir},
	{"symlink", fs.ModeSymlink},
	{"fifo", fs.ModeNamedPipe},
	{"socket", fs.ModeSocket},
	{"device", fs.ModeDevice},
	{"device", fs.ModeDevice | fs.ModeCharDevice},
}

// Mode is permission bits with the set-id and sticky bits where Unix has them.
func Mode(m fs.FileMode) uint32 {
	n := uint32(m.Perm())
	for _, b := range setBits {
		if m&b.mode != 0 {
			n |= b.bit
		}
	}
	return n
}

var setBits = []struct {
	mode fs.FileMode
	bit  uint32
}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}}

// FileInfo is the message of a description; target is that of a symbolic link.
func FileInfo(fi fs.FileInfo, target string) *v1.FileInfo {
	m := &v1.FileInfo{Name: Text(fi.Name()), Size: fi.Size(), Mode: Mode(fi.Mode()), Type: "device", ModifiedAt: Time(fi.ModTime()), LinkTarget: Text(target)}
	for _, t := range types {
		if fi.Mode().Type() == t.mode {
			m.Type = t.name
			break
		}
	}
	return m
}

// info is a description from a message.
type info struct{ m *v1.FileInfo }

// FromFileInfo is the description of a message.
func FromFileInfo(m *v1.FileInfo) (fs.FileInfo, error) {
	if m == nil {
		return nil, errors.New("a file without description")
	}
	for _, t := range types {
		if t.name == m.Type {
			return info{m}, nil
		}
	}
	return nil, fmt.Errorf("file type %q", m.Type)
}

func (i info) Name() string       { return path.Base(Name(i.m.Name)) }
func (i info) Size() int64        { return i.m.Size }
func (i info) ModTime() time.Time { return FromTime(i.m.ModifiedAt) }
func (i info) IsDir() bool        { return i.Mode().IsDir() }
func (i info) Sys() any           { return nil }

func (i info) Mode() fs.FileMode {
	m := fs.FileMode(i.m.Mode & 0o777)
	for _, b := range setBits {
		if i.m.Mode&b.bit != 0 {
			m |= b.mode
		}
	}
	for _, t := range types {
		if t.name == i.m.Type {
			return m | t.mode
		}
	}
	return m
}
