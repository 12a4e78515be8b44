package native

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"belljar"
	"belljar/backend/native/keeper"
	"belljar/internal/linux/cgroup"
	"belljar/internal/linux/landlock"
	"belljar/internal/linux/seccomp"

	"golang.org/x/sys/unix"
)

// Backend makes sandboxes on this host. It is safe for concurrent use.
type Backend struct {
	cfg  Config
	root bool // effective uid 0 with CAP_SYS_ADMIN

	mu        sync.Mutex // guards what follows
	nursery   *keeper.Nursery
	pending   []func(error) // who waits for the nursery's next answers, in order
	initErr   error         // what the nursery said to M_INIT
	starting  chan startedNursery
	topsSent  bool
	cg        *cgroup.Root
	cgErr     error
	spoiled   bool // cg is to be closed before it is used again
	templates map[string]*template
	tenants   map[string]uint32
	idmaps    map[idmapKey]int
	live      map[*instance]struct{}
	making    map[*instance]struct{} // have ids, are not in live yet
	closed    bool
	creating  sync.WaitGroup // what will be in live; added to under mu

	filterMu sync.Mutex // guards filters
	filters  map[filterKey]*seccomp.Program
}

type template struct {
	err  error // why it could not be made
	id   uint32
	used int // sandboxes being made from it
	last time.Time
}

// New returns the backend. Nothing is started until it is needed.
func New(c Config) *Backend {
	if c.IDBase == 0 {
		c.IDBase = 0x40000000
	}
	if c.Tag == "" {
		var b [6]byte
		_, _ = rand.Read(b[:]) // never fails since Go 1.24
		c.Tag = hex.EncodeToString(b[:])
	}
	return &Backend{
		cfg: c, root: os.Geteuid() == 0 && hasSysAdmin(), templates: map[string]*template{}, tenants: map[string]uint32{}, idmaps: map[idmapKey]int{},
		live: map[*instance]struct{}{}, making: map[*instance]struct{}{}, filters: map[filterKey]*seccomp.Program{},
	}
}

var _ belljar.Backend = (*Backend)(nil)

func hasSysAdmin() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// Name is "native".
func (b *Backend) Name() string { return "native" }

// Rootless reports whether this process has to make do without privileges.
func (b *Backend) Rootless() bool { return !b.root }

var errClosed = &belljar.Error{Code: belljar.CodeUnavailable, Op: "native", Message: "the backend is closed"}

// begin announces a sandbox to Close.
func (b *Backend) begin() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errClosed
	}
	b.creating.Add(1)
	return nil
}

// start brings the nursery up without waiting for it: a first sandbox costs a third
// less when groups and root are prepared meanwhile. ready waits. b.mu is held.
func (b *Backend) start() error {
	if b.closed {
		return errClosed
	}
	b.dropSpoiled()
	if b.nursery != nil {
		return b.settle()
	}
	if b.starting == nil {
		b.starting = make(chan startedNursery, 1)
		m := keeper.NewMsg(keeper.MInit, 1)
		var flags uint32
		if !b.root {
			flags = keeper.InitRootless
		}
		m.U32(flags, uint32(os.Geteuid()), uint32(os.Getegid()), userID)
		go func(c chan<- startedNursery) {
			n, err := keeper.StartNursery()
			if err == nil {
				if err = n.Send(m); err != nil {
					err = errors.Join(err, n.Close())
				}
			}
			c <- startedNursery{n, err}
		}(b.starting)
	}
	return nil
}

type startedNursery struct {
	n   *keeper.Nursery
	err error
}

// ready waits for the nursery and tells it what it has to know first. b.mu is held.
func (b *Backend) ready() error {
	if b.nursery == nil {
		s := <-b.starting
		b.starting = nil
		if s.err != nil {
			return &belljar.Error{
				Code: belljar.CodeIsolationUnavailable, Op: "native", Message: s.err.Error(), Err: s.err,
				Hint: "memfd_create and execution from it must be allowed (sysctl vm.memfd_noexec=0)",
			}
		}
		b.nursery, b.initErr, b.pending, b.topsSent = s.n, nil, nil, false
		b.pending = append(b.pending, func(err error) { b.initErr = err })
	}
	if b.cg != nil && !b.topsSent {
		return b.sendTops()
	}
	return nil
}

// sendTops tells the nursery what to remove when this process is killed. b.mu is held.
func (b *Backend) sendTops() error {
	m := keeper.NewMsg(keeper.MTops, 2)
	for _, top := range b.cg.Tops() {
		fd, err := unix.Open(filepath.Dir(top), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		m.FDs = append(m.FDs, fd)
		m.Str(filepath.Base(top))
	}
	b.topsSent = true
	b.post(m, func(err error) {
		if err != nil && b.cfg.Logger != nil {
			b.cfg.Logger.Warn("groups will not be removed when this process is killed", "err", err)
		}
	})
	return nil
}

// post sends a request to the nursery; its answer is taken by settle. b.mu is held.
func (b *Backend) post(m *keeper.Msg, done func(error)) {
	if err := b.nursery.Send(m); err != nil {
		done(fmt.Errorf("keeper: %w", err))
		return
	}
	b.pending = append(b.pending, done)
}

// lost gives up a nursery that was killed from outside, so that the next sandbox
// gets a new one. Sandboxes that it made live on: their keepers are not it. b.mu is held.
func (b *Backend) lost(err error) error {
	_ = b.nursery.Close() // it is dead already
	b.nursery, b.pending = nil, nil
	clear(b.templates)
	return &belljar.Error{
		Code: belljar.CodeUnavailable, Op: "create", Message: "the nursery has ended: " + err.Error(), Err: err, Recoverable: true,
		Hint: "something killed the process belljar-nursery; the next attempt starts a new one",
	}
}

// settle takes the answers that are outstanding. A nursery that could not be set up
// is ended, so that the next attempt begins anew. b.mu is held.
func (b *Backend) settle() error {
	buf := make([]byte, 4096)
	for len(b.pending) > 0 {
		done := b.pending[0]
		b.pending = b.pending[1:]
		h, body, fds, err := b.nursery.Recv(buf)
		for _, fd := range fds {
			unix.Close(fd)
		}
		switch {
		case err != nil:
			err = fmt.Errorf("keeper: %w", err)
		case h.Type == keeper.MFail:
			var f keeper.Fail
			if f, err = keeper.ParseFail(body); err == nil {
				err = &StepError{f.Step, unix.Errno(f.Errno), f.Arg}
			}
		case h.Type == keeper.MOK:
			_, err = keeper.ParseOK(body)
		default:
			err = keeper.ErrProtocol
		}
		done(err)
	}
	if b.initErr == nil {
		return nil
	}
	err := b.initError()
	_ = b.nursery.Close() // it has failed already, and removes the groups
	b.nursery, b.initErr = nil, nil
	clear(b.templates)
	b.spoiled = b.cg != nil
	return err
}

// dropSpoiled closes groups that a failed nursery was told to remove, once nobody is
// being told of the failure who has one of them; b.mu is held.
func (b *Backend) dropSpoiled() {
	if !b.spoiled || len(b.making)+len(b.live) > 0 {
		return
	}
	b.spoiled = false
	if b.cg != nil {
		_ = b.cg.Close() // the nursery may have removed them
		b.cg = nil
	}
}

// initError explains why the nursery could not be set up.
func (b *Backend) initError() error {
	err := b.initErr
	e := &belljar.Error{
		Code: belljar.CodeIsolationUnavailable, Op: "native", Message: err.Error(), Err: err,
		Hint: "namespaces and mounts must be allowed: inside a container, with its CAP_SYS_ADMIN and a seccomp profile that lets unshare and mount through",
	}
	var f *StepError
	if b.root || !errors.As(err, &f) || f.Step < keeper.StepUnshareUser || f.Step > keeper.StepUnshareUser+2 {
		return e
	}
	e.Message = "layer user: unprivileged user namespaces are not allowed here: " + err.Error()
	switch {
	case readProc("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
		e.Hint = "AppArmor restricts them: install the profile of deploy/apparmor, or run as root"
	case readProc("/proc/sys/kernel/unprivileged_userns_clone") == "0":
		e.Hint = "sysctl kernel.unprivileged_userns_clone=1, or run as root"
	case readProc("/proc/sys/user/max_user_namespaces") == "0":
		e.Hint = "sysctl user.max_user_namespaces=10000, or run as root"
	default:
		e.Hint = "run as root, or allow user namespaces for this user (inside a container: its seccomp profile must allow unshare)"
	}
	return e
}

func readProc(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// StepError is a step of the keeper that failed.
type StepError struct {
	Step  keeper.Step
	Errno unix.Errno
	Arg   uint32
}

func (e *StepError) Error() string { return e.Step.String() + ": " + e.Errno.Error() }

// Unwrap returns the errno.
func (e *StepError) Unwrap() error { return e.Errno }

// cgroups opens the runtime's top groups; b.mu is held.
func (b *Backend) cgroups() (*cgroup.Root, error) {
	if b.cg != nil || b.cgErr != nil {
		return b.cg, b.cgErr
	}
	r, err := cgroup.Open(cgroup.Config{Parent: b.cfg.CgroupParent, Tag: b.cfg.Tag})
	if err != nil {
		b.cgErr = err
		return nil, err
	}
	b.cg = r
	return r, nil
}

// templateFor returns the root of a plan; b.mu is held. Compiling one looks at
// some hundred host paths, so it is done again only when what it depends on
// changed: what the plan asks for, and the directories that were listed.
func (b *Backend) templateFor(p *belljar.Plan, on map[belljar.Layer]bool, dirs []bool) (*template, error) {
	var key strings.Builder
	fmt.Fprintf(&key, "%q %q %t %t", p.Spec.Image, p.Spec.WorkDir, on[belljar.LayerRootfs], viewed(on))
	for i, m := range p.Spec.Mounts {
		fmt.Fprintf(&key, " %q %t", m.Target, dirs[i])
	}
	for _, d := range []string{"/", "/etc", p.Spec.Image, p.Spec.Image + "/var", p.Spec.Image + "/home"} {
		var st unix.Stat_t
		if d != "" && unix.Stat(d, &st) == nil {
			fmt.Fprintf(&key, " %d.%d.%d", st.Ino, st.Mtim.Sec, st.Mtim.Nsec)
		}
	}
	if x := b.templates[key.String()]; x != nil {
		x.last = time.Now()
		return x, nil
	}
	t, err := buildTree(p, on)
	if err != nil {
		return nil, err
	}
	root := "/"
	if p.Spec.Image != "" {
		root = p.Spec.Image
	}
	for i, m := range p.Spec.Mounts {
		if err := t.target(m.Target, root, dirs[i]); err != nil {
			return nil, &belljar.Error{
				Code: belljar.CodeInvalidSpec, Op: fmt.Sprintf("spec mounts[%d].target", i), Message: err.Error(), Err: err,
				Hint: "below what the image shows read-only, the target must exist already",
			}
		}
	}
	if err := b.ready(); err != nil {
		return nil, err
	}
	id := freeTemplate(b.templates)
	if len(b.templates) >= maxTemplates {
		var oldKey string
		var old *template
		for k, x := range b.templates {
			if x.used == 0 && (old == nil || x.last.Before(old.last)) {
				oldKey, old = k, x
			}
		}
		if old == nil {
			return nil, &belljar.Error{Code: belljar.CodeUnavailable, Op: "create", Message: fmt.Sprintf("%d different roots are in use at once", maxTemplates)}
		}
		m := keeper.NewMsg(keeper.MForget, 3).U32(old.id, 0)
		if err := b.nursery.Send(m); err != nil {
			return nil, b.lost(err)
		}
		delete(b.templates, oldKey)
		id = old.id
	}
	m := keeper.NewMsg(keeper.MTemplate, 4).U32(id, uint32(len(t.ops))).Ops(t.ops...)
	x := &template{id: id, last: time.Now()}
	k := key.String()
	b.templates[k] = x
	b.post(m, func(err error) {
		if err == nil {
			return
		}
		x.err = err
		delete(b.templates, k)
		var f *StepError
		if errors.As(err, &f) && int(f.Arg) < len(t.ops) {
			x.err = &templateError{t.ops[f.Arg].A, f}
		}
	})
	return x, nil
}

// templateError is a root that could not be made.
type templateError struct {
	at  string
	err *StepError
}

func (e *templateError) Error() string { return "template " + e.at + ": " + e.err.Error() }

// Unwrap returns the step.
func (e *templateError) Unwrap() error { return e.err }

// maxTemplates leaves some of the keeper's table free.
const maxTemplates = 200

// freeTemplate returns an id that no template has. Not how many there are: one that
// could not be made has left a gap.
func freeTemplate(all map[string]*template) uint32 {
	taken := make(map[uint32]bool, len(all))
	for _, x := range all {
		taken[x.id] = true
	}
	id := uint32(0)
	for taken[id] {
		id++
	}
	return id
}

// idRanges is how many ranges of 65 536 host ids there are.
const idRanges = 0x2000

// idBase gives a tenant its own range of host ids; b.mu is held. The range stays the
// tenant's at least as long as a sandbox in it lives or is being made.
func (b *Backend) idBase(tenant string) (uint32, error) {
	if base, ok := b.tenants[tenant]; ok {
		return base, nil
	}
	base, ok := b.freeRange(tenant)
	if !ok {
		// More tenants than ranges: those without a sandbox give theirs back.
		clear(b.tenants)
		for in := range b.inUse() {
			b.tenants[in.plan.Spec.Tenant] = in.base
		}
		if base, ok = b.freeRange(tenant); !ok {
			return 0, &belljar.Error{
				Code: belljar.CodeUnavailable, Op: "create", Message: fmt.Sprintf("%d tenants have sandboxes at once, and each needs host ids of its own", idRanges),
				Hint: "destroy what is not needed, or use several runtimes with different Config.IDBase",
			}
		}
	}
	b.tenants[tenant] = base
	return base, nil
}

// inUse are the sandboxes that live and those that are being made; b.mu is held.
func (b *Backend) inUse() iter.Seq[*instance] {
	return func(yield func(*instance) bool) {
		for _, set := range []map[*instance]struct{}{b.live, b.making} {
			for in := range set {
				if !yield(in) {
					return
				}
			}
		}
	}
}

// freeRange is the first range from the tenant's own on that nobody has. The same
// tenant gets the same range in every run, as far as its neighbours let it.
func (b *Backend) freeRange(tenant string) (uint32, bool) {
	taken := make(map[uint32]bool, len(b.tenants))
	for _, v := range b.tenants {
		taken[v] = true
	}
	for in := range b.inUse() { // an adopted one has the range that it was made with
		taken[in.base] = true
	}
	sum := sha256.Sum256([]byte(tenant))
	first := binary.LittleEndian.Uint32(sum[:])
	for i := range uint32(idRanges) {
		if base := b.cfg.IDBase + (first+i)%idRanges<<16; !taken[base] {
			return base, true
		}
	}
	return 0, false
}

// filterKey names a filter. Where the host's files can be written, they get no set-id bits.
type filterKey struct {
	profile seccomp.Profile
	noSetID bool
}

func (b *Backend) filter(k filterKey) (*seccomp.Program, error) {
	b.filterMu.Lock()
	defer b.filterMu.Unlock()
	if f := b.filters[k]; f != nil {
		return f, nil
	}
	arch, err := seccomp.Native()
	if err != nil {
		return nil, err
	}
	compile := seccomp.Compile
	if k.noSetID {
		compile = seccomp.CompileNoSetID
	}
	f, err := compile(k.profile, arch)
	if err != nil {
		return nil, err
	}
	b.filters[k] = f
	return f, nil
}

// Close ends every sandbox that may not outlive the backend, and the nursery.
func (b *Backend) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.creating.Wait() // it needs mu, and its keeper must not wait for us meanwhile
	b.mu.Lock()
	var live []*instance
	for in := range b.live {
		live = append(live, in)
	}
	b.mu.Unlock()
	var errs []error
	for _, in := range live {
		if in.plan.Persist {
			in.detach()
		} else {
			errs = append(errs, in.Close(ctx))
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.starting != nil {
		if s := <-b.starting; s.err == nil {
			b.nursery = s.n
		}
		b.starting = nil
	}
	if b.nursery != nil {
		_ = b.nursery.Conn.Close() // it ends while the groups are removed
	}
	if b.cg != nil {
		errs = append(errs, b.cg.Close())
		b.cg = nil
		b.cgErr = errors.New("the backend is closed")
	}
	for k, fd := range b.idmaps {
		unix.Close(fd)
		delete(b.idmaps, k)
	}
	if b.nursery != nil {
		errs = append(errs, b.nursery.Close())
		b.nursery = nil
	}
	return errors.Join(errs...)
}

// missing is the refusal of a layer.
func missing(l belljar.Layer, reason, remedy string) *belljar.Error {
	return &belljar.Error{
		Code: belljar.CodeIsolationUnavailable, Op: "create", Message: fmt.Sprintf("layer %s is required and unavailable: %s", l, reason), Hint: remedy,
	}
}

// refusal is the one error of ours in err, or what err is made into.
func refusal(err error) *belljar.Error {
	var e *belljar.Error
	if errors.As(err, &e) {
		return e
	}
	return createError(err)
}

// choice is what is applied of each layer.
type choice struct {
	on     map[belljar.Layer]bool
	report map[belljar.Layer]belljar.LayerReport
}

// choose weighs what the plan wants against what the host has.
func (b *Backend) choose(p *belljar.Plan) (*choice, error) {
	c := &choice{on: map[belljar.Layer]bool{}, report: map[belljar.Layer]belljar.LayerReport{}}
	for _, a := range b.layers(p) {
		switch want := p.Wants[a.Layer]; {
		case want == belljar.Off:
			c.report[a.Layer] = belljar.LayerReport{Layer: a.Layer, Status: belljar.LayerOff, Reason: "switched off in the spec", Source: "supervisor"}
		case a.Status == belljar.LayerApplied:
			c.on[a.Layer] = true
		case want == belljar.Require:
			return nil, missing(a.Layer, a.Reason, a.Detail)
		default:
			c.report[a.Layer] = belljar.LayerReport{Layer: a.Layer, Status: belljar.LayerUnavailable, Reason: a.Reason, Source: "supervisor"}
		}
	}
	if !c.on[belljar.LayerMount] && c.on[belljar.LayerRootfs] {
		return nil, &belljar.Error{
			Code: belljar.CodeUnsupported, Op: "create", Message: "layer mount cannot be off while rootfs is on", Hint: "set isolation.layers.rootfs: off too",
		}
	}
	if !c.on[belljar.LayerMount] {
		return nil, &belljar.Error{Code: belljar.CodeUnsupported, Op: "create", Message: "the native backend always uses a mount namespace", Hint: "remove isolation.layers.mount"}
	}
	if !b.root && !c.on[belljar.LayerUser] {
		return nil, &belljar.Error{Code: belljar.CodeUnsupported, Op: "create", Message: "without privileges everything rests on the user namespace", Hint: "remove isolation.layers.user, or run as root"}
	}
	return c, nil
}

const cgroupRemedy = "run as root, or in a delegated subtree: systemd-run --user --scope -p Delegate=yes"

// layers says which layers this host has. Status applied = available; Detail of an
// unavailable one is the remedy. For a plan, what it will need is opened rather than
// asked for. b.mu is held.
func (b *Backend) layers(p *belljar.Plan) []belljar.LayerReport {
	out := make([]belljar.LayerReport, 0, len(belljar.Layers))
	add := func(l belljar.Layer, err error, remedy string) {
		r := belljar.LayerReport{Layer: l, Status: belljar.LayerApplied, Source: "supervisor"}
		if err != nil {
			r.Status, r.Reason, r.Detail = belljar.LayerUnavailable, err.Error(), remedy
		}
		out = append(out, r)
	}
	for _, l := range belljar.Layers {
		switch l {
		case belljar.LayerUser, belljar.LayerMount, belljar.LayerPid, belljar.LayerNet, belljar.LayerIPC, belljar.LayerUTS, belljar.LayerCgroupNS:
			_, err := os.Stat("/proc/self/ns/" + nsFile[l])
			add(l, err, "a kernel with this namespace (CONFIG_"+nsConfig[l]+")")
		case belljar.LayerSeccomp:
			add(l, seccomp.Supported(), "a kernel with CONFIG_SECCOMP_FILTER")
		case belljar.LayerLandlock:
			add(l, landlock.Supported(), "Linux 5.13 or later with landlock in the lsm= list")
		case belljar.LayerCgroup:
			var err error
			if p == nil || p.Persist {
				err = cgroup.Supported()
			} else if p.Wants[l] != belljar.Off {
				_, err = b.cgroups()
			}
			var u *cgroup.UnsupportedError
			remedy := cgroupRemedy
			if errors.As(err, &u) {
				// "what to do (what was tried)"
				needs, tried, ok := strings.Cut(u.Needs, " (")
				remedy = needs
				if ok {
					err = errors.New(strings.TrimSuffix(tried, ")"))
				}
			}
			add(l, err, remedy)
		default:
			add(l, nil, "")
		}
	}
	return out
}

var nsFile = map[belljar.Layer]string{
	belljar.LayerUser: "user", belljar.LayerMount: "mnt", belljar.LayerPid: "pid", belljar.LayerNet: "net",
	belljar.LayerIPC: "ipc", belljar.LayerUTS: "uts", belljar.LayerCgroupNS: "cgroup",
}

var nsConfig = map[belljar.Layer]string{
	belljar.LayerUser: "USER_NS", belljar.LayerMount: "NAMESPACES", belljar.LayerPid: "PID_NS", belljar.LayerNet: "NET_NS",
	belljar.LayerIPC: "IPC_NS", belljar.LayerUTS: "UTS_NS", belljar.LayerCgroupNS: "CGROUPS",
}

var nsFlag = map[belljar.Layer]uint32{
	belljar.LayerUser: unix.CLONE_NEWUSER, belljar.LayerMount: unix.CLONE_NEWNS, belljar.LayerPid: unix.CLONE_NEWPID, belljar.LayerNet: unix.CLONE_NEWNET,
	belljar.LayerIPC: unix.CLONE_NEWIPC, belljar.LayerUTS: unix.CLONE_NEWUTS, belljar.LayerCgroupNS: unix.CLONE_NEWCGROUP,
}

// Probe says which layers this host has.
func (b *Backend) Probe(ctx context.Context) (belljar.Probe, error) {
	if err := ctx.Err(); err != nil {
		return belljar.Probe{}, err
	}
	var u unix.Utsname
	_ = unix.Uname(&u) // cannot fail with a valid pointer
	p := belljar.Probe{Backend: b.Name(), Host: unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:]) + " " + runtime.GOARCH}
	b.mu.Lock()
	err := b.start()
	if err == nil {
		if err = b.ready(); err == nil {
			err = b.settle()
		}
	}
	p.Layers = b.layers(nil)
	b.mu.Unlock()
	if err != nil {
		e := refusal(err)
		for i := range p.Layers {
			switch p.Layers[i].Layer {
			case belljar.LayerUser, belljar.LayerMount, belljar.LayerRootfs:
				p.Layers[i].Status, p.Layers[i].Reason, p.Layers[i].Detail = belljar.LayerUnavailable, e.Message, e.Hint
			}
		}
	}
	for _, name := range belljar.CapabilityNames {
		c := belljar.Capability{Name: name, Support: belljar.Unknown, Reason: "not attacked in this boot yet: run belljar doctor"}
		switch name {
		case "egressPolicy", "checkpoint", "fork", "ports", "remoteExecution":
			c.Support, c.Reason = belljar.Unsupported, "not built"
		}
		p.Capabilities = append(p.Capabilities, c)
	}
	return p, nil
}
