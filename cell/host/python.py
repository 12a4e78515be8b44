# The Python host of belljar cells: one file, Python 3.8 to 3.14, nothing but the
# standard library. It runs inside the sandbox beside the user's code, shares its
# fate, and is believed for nothing that limits or counts.
import _ast
import json
import linecache
import os
import signal
import sys
import time
import traceback
from _thread import allocate_lock, get_ident
from select import POLLIN, poll
from struct import pack

HOST = "<belljar>"
ABI = 1
LONGEST_TEXT = 65536
AWAIT = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
ONLY_AST = 0x400
COROUTINE = 0x80

# Bound now, so that user code that replaces them does not change the host by accident.
read, write, getpid = os.read, os.write, os.getpid
monotonic = time.monotonic


class Broken(Exception):
    """The other side did not keep to the protocol."""


def pairs(items):
    d = dict(items)
    if len(d) != len(items):
        raise Broken("a duplicate key")
    return d


def constant(name):
    raise Broken("no JSON number: " + name)


def plain(o):
    """Turns what numeric libraries make of numbers and lists into JSON."""
    f = getattr(o, "tolist", None)
    if f is None or isinstance(o, type):
        raise TypeError("%s is no JSON value" % type(o).__name__)
    return f()


decoder = json.JSONDecoder(object_pairs_hook=pairs, parse_constant=constant)
encode = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=plain).encode

SHAPES = {
    "open": {"v": int, "id": int, "cell": str, "dir": str, "env": (dict, type(None)), "imports": (list, type(None)), "frame": int},
    "exec": {"id": int, "context": str, "source": str},
    "call": {"id": int, "context": str, "target": str, "args": list, "kwargs": dict},
    "post": {"value": object},
    "reply": {"id": int, "ok": bool, "value": object, "error": str},
}
OPTIONAL = {"value", "error"}


def parse(body):
    """Returns the frame of these bytes."""
    try:
        f = decoder.decode(body.decode("utf-8"))
    except (ValueError, RecursionError) as e:
        raise Broken(str(e))
    if type(f) is not dict:
        raise Broken("no object")
    t = f.get("t")
    shape = SHAPES.get(t) if type(t) is str else None
    if shape is None:
        raise Broken("no such frame")
    for k, v in f.items():
        if k == "t":
            continue
        want = shape.get(k)
        if want is None or not isinstance(v, want) or want is int and type(v) is bool:
            raise Broken("%s: %s" % (t, k))
    for k in shape:
        if k not in f and not (t == "reply" and k in OPTIONAL):
            raise Broken("%s lacks %s" % (t, k))
    return f


class State:
    pass


st = State()
st.running = False  # user code may be interrupted
st.busy = False  # a frame is half read or half written
st.pending = False  # an interrupt came while busy
st.op = 0
st.main = 0
st.pid = 0
st.posts = []
st.replies = {}
st.ops = []
st.requests = 0
st.contexts = {}
st.count = 0
st.loop = None
st.imports = None


def interrupted(signum, frame):
    if st.busy:
        st.pending = True
    elif st.running and getpid() == st.pid:
        raise KeyboardInterrupt


class Critical:
    """Holds back interrupts, so that no frame is torn."""

    def __enter__(self):
        self.mine = get_ident() == st.main
        if self.mine:
            st.busy = True

    def __exit__(self, *exc):
        if self.mine:
            st.busy = False
            if st.pending:
                st.pending = False
                if st.running:
                    raise KeyboardInterrupt


class Wire:
    """Frames on a stream socket."""

    def __init__(self, fd, bound):
        self.fd, self.bound, self.buf = fd, bound, b""
        self.sending, self.reading = allocate_lock(), allocate_lock()
        self.poll = poll()
        self.poll.register(fd, POLLIN)

    def frame(self):
        """Returns a frame that is wholly there, or None."""
        end = self.buf.find(b"\n", 0, 10)
        if end < 0:
            if len(self.buf) >= 10:
                raise Broken("a long length")
            return None
        head = self.buf[:end]
        if not head.isdigit() or head[:1] == b"0" or int(head) > self.bound:
            raise Broken("a bad length")
        stop = end + 1 + int(head)
        if len(self.buf) < stop:
            return None
        body, self.buf = self.buf[end + 1 : stop], self.buf[stop:]
        return parse(body)

    def fill(self, deadline):
        """Reads some bytes; False when the time is over."""
        if st.running:
            # Nothing is read yet, so that an interrupt tears nothing.
            left = None if deadline is None else max(0, deadline - monotonic()) * 1000
            if not self.poll.poll(left):
                return False
        with Critical():
            chunk = read(self.fd, 65536)
            self.buf += chunk
        if not chunk:
            raise EOFError
        return True

    def send(self, text):
        if getpid() != st.pid:
            raise RuntimeError("only the cell's own process speaks for it")
        body = text.encode("ascii")
        if len(body) > self.bound:
            raise ValueError("%d bytes of JSON, at most %d fit into a frame" % (len(body), self.bound))
        data = b"%d\n%s" % (len(body), body)
        with Critical(), self.sending:
            view = memoryview(data)
            while view:
                view = view[write(self.fd, view) :]


def route(f):
    t = f["t"]
    if t == "post":
        st.posts.append(f["value"])
    elif t == "reply":
        st.replies[f["id"]] = f
    else:
        st.ops.append(f)


def wait(pick, deadline=None):
    """Reads frames until pick finds its own, or the time is over (None)."""
    w = st.wire
    while True:
        got = pick()
        if got is not None:
            return got
        # Another thread may be the reader; it leaves what is ours where we look.
        if not w.reading.acquire(timeout=0.005):
            if deadline is not None and monotonic() >= deadline:
                return None
            continue
        try:
            got = pick()
            while got is None:
                f = w.frame()
                if f is not None:
                    route(f)
                    got = pick()
                elif not w.fill(deadline):
                    return None
            return got
        finally:
            w.reading.release()


# What user code sees as `cell`.


class Refused(PermissionError):
    """The request was not granted, or its handler refused it."""


class Message:
    def __init__(self, value):
        self.value = value


class Cell:
    """The cell, as its own code sees it: post, recv, log, metric, request."""

    Refused = Refused

    def __init__(self):
        self.id = ""

    def post(self, message):
        st.wire.send('{"t":"post","value":%s}' % encode(message))

    def recv(self, timeout=None):
        deadline = None if timeout is None else monotonic() + timeout
        got = wait(lambda: Message(st.posts.pop(0)) if st.posts else None, deadline)
        if got is None:
            raise TimeoutError("no message within %g s" % timeout)
        return got.value

    def log(self, level, message, **fields):
        if level not in ("debug", "info", "warning", "error"):
            raise ValueError("level is debug, info, warning or error")
        f = {"t": "log", "level": level, "message": str(message)}
        if fields:
            f["fields"] = fields
        st.wire.send(encode(f))

    def metric(self, name, value, **tags):
        if not isinstance(name, str) or not 0 < len(name) <= 128:
            raise ValueError("a metric has a name of up to 128 characters")
        f = {"t": "metric", "name": name, "value": float(value)}
        if tags:
            f["tags"] = {k: str(v) for k, v in tags.items()}
        st.wire.send(encode(f))

    def request(self, capability, action, payload=None):
        for s in (capability, action):
            if not isinstance(s, str) or not 0 < len(s) <= 128:
                raise ValueError("capability and action are names of up to 128 characters")
        st.requests += 1
        n = st.requests
        st.wire.send(encode({"t": "request", "id": n, "capability": capability, "action": action, "payload": payload}))
        r = wait(lambda: st.replies.pop(n, None))
        if not r["ok"]:
            raise Refused(r.get("error", "refused"))
        return r.get("value")


def display(*values):
    """Shows values beside the result."""
    if not st.op:
        raise RuntimeError("no operation runs")
    for v in values:
        show(represent(v))


def show(data):
    st.wire.send('{"t":"display","id":%d,"data":%s}' % (st.op, fit(data)))


# Representations.

REPRS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("text/latex", "_repr_latex_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("application/json", "_repr_json_"),
)
SIMPLE = (int, str, float, bool, bytes, list, dict, tuple, set, complex, type(None), type(len), type(plain))
VALUES = (int, str, float, bool, list, dict, tuple)


def text(v):
    try:
        s = repr(v)
    except Exception as e:
        s = "<%s: its repr raised %s>" % (type(v).__name__, type(e).__name__)
    if len(s) > LONGEST_TEXT:
        s = s[:LONGEST_TEXT] + "... %d more characters" % (len(s) - LONGEST_TEXT)
    return s


def b64(v):
    if isinstance(v, (bytes, bytearray)):
        import base64

        return base64.b64encode(v).decode("ascii")
    return v


def represent(v):
    """Returns the representations of a value by media type."""
    data = {"text/plain": text(v)}
    if type(v) in SIMPLE or isinstance(v, type):
        return data
    for mime, name in REPRS:
        add(data, mime, v, name)
    f = getattr(v, "_repr_mimebundle_", None)
    if callable(f):
        try:
            got = f(include=None, exclude=None)
            if isinstance(got, tuple):
                got = got[0]
            for mime, x in (got or {}).items():
                data[str(mime)] = b64(x)
        except Exception:
            pass  # what cannot show itself is shown as text
    module = type(v).__module__ or ""
    if module.partition(".")[0] == "plotly" and hasattr(v, "to_json"):
        try:
            data["application/vnd.plotly.v1+json"] = json.loads(v.to_json())
        except Exception:
            pass
    if module.partition(".")[0] == "matplotlib" and hasattr(v, "savefig"):
        data["image/png"] = b64(picture(v))
    return data


def add(data, mime, v, name):
    f = getattr(v, name, None)
    if not callable(f):
        return
    try:
        got = f()
    except Exception:
        return  # as above
    if isinstance(got, tuple):
        got = got[0]
    if got is not None:
        data[mime] = b64(got)


def picture(fig):
    import io

    out = io.BytesIO()
    fig.savefig(out, format="png", bbox_inches="tight")
    return out.getvalue()


def figures():
    """Shows the figures that pyplot holds, and closes them."""
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is None:
        return
    for n in plt.get_fignums():
        fig = plt.figure(n)
        show({"text/plain": text(fig), "image/png": b64(picture(fig))})
    plt.close("all")


def fit(data):
    """Encodes representations, leaving out the largest until a frame holds them."""
    if len(data) == 1 and st.wire.bound > 1 << 19:
        for mime, v in data.items():
            if mime == "text/plain":  # at most LONGEST_TEXT characters
                return '{"text/plain":%s}' % encode(v)
    room = st.wire.bound - 1024
    parts = {}
    for mime, v in data.items():
        try:
            parts[mime] = encode(v)
        except (TypeError, ValueError, RecursionError):
            pass  # not JSON: the text stays
    left = []
    while parts and sum(len(k) + len(v) + 16 for k, v in parts.items()) > room:
        worst = max(parts, key=lambda k: len(parts[k]))
        left.append("%s (%d bytes)" % (worst, len(parts.pop(worst))))
    if left:
        parts["text/plain"] = encode("too large for a frame: " + ", ".join(left))
    return "{%s}" % ",".join("%s:%s" % (encode(k), v) for k, v in parts.items())


# Faults.


def fault(e):
    """Describes an exception with a traceback that is cut to user code."""
    name = type(e).__name__
    try:
        message = str(e)
    except Exception:
        message = ""
    try:
        te = traceback.TracebackException(type(e), e, e.__traceback__)
        cut(te, 0)
        lines = "".join(te.format()).splitlines()
    except Exception as again:
        lines = ["%s: %s" % (name, message), "(no traceback: %s)" % type(again).__name__]
    return {"name": name[:200], "message": clip(message), "traceback": [clip(x) for x in lines[-200:]]}


def cut(te, depth):
    if te is None or depth > 20:
        return
    te.stack = traceback.StackSummary.from_list([f for f in te.stack if f.filename != HOST])
    for x in [te.__cause__, te.__context__] + list(getattr(te, "exceptions", None) or []):
        cut(x, depth + 1)


def clip(s):
    return s if len(s) <= 4096 else s[:4096] + "..."


# Contexts.


def guard(allowed):
    """Returns builtins whose import knows only some packages. It is no boundary: it tells
    honest code early what is not meant to be used."""
    import builtins

    b = dict(vars(builtins))
    b["input"] = no_input
    if allowed is None:
        return b
    real = builtins.__import__

    def guarded(name, globals=None, locals=None, fromlist=(), level=0):
        if level == 0 and name.partition(".")[0] not in allowed:
            raise ImportError("%s is not among the imports of this cell: %s" % (name, ", ".join(sorted(allowed))), name=name)
        return real(name, globals, locals, fromlist, level)

    b["__import__"] = guarded
    return b


def no_input(prompt=""):
    raise EOFError("a cell has no input; hand values in by call or post")


def context(name):
    mod = st.contexts.get(name)
    if mod is None:
        mod = type(sys)("__main__")
        mod.__builtins__ = guard(st.imports)
        mod.cell, mod.display = st.cell, display
        st.contexts[name] = mod
    sys.modules["__main__"] = mod
    return vars(mod)


def await_(coroutine):
    """Runs a coroutine on the cell's loop."""
    import asyncio

    if st.loop is None:
        st.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(st.loop)
    task = st.loop.create_task(coroutine)
    try:
        return st.loop.run_until_complete(task)
    except BaseException:
        if not task.done():
            task.cancel()
            st.loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        raise


def run(code, ns):
    if code.co_flags & COROUTINE:
        return await_(eval(code, ns))
    return eval(code, ns)


def execute(source, ns):
    """Runs source and returns the value of its last expression, and whether it is one."""
    st.count += 1
    name = "<cell %d>" % st.count
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    linecache.cache.pop("<cell %d>" % (st.count - 500), None)
    tree = compile(source, name, "exec", ONLY_AST | AWAIT, True)
    last = None
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = _ast.Expression(tree.body.pop().value)
    if tree.body:
        run(compile(tree, name, "exec", AWAIT, True), ns)
    if last is None:
        return None
    v = run(compile(last, name, "eval", AWAIT, True), ns)
    if v is not None:
        ns["_"] = v
    return v


def resolve(target, ns):
    first, *rest = target.split(".")
    if first not in ns:
        raise NameError("name %r is not defined" % first)
    v = ns[first]
    for name in rest:
        v = getattr(v, name)
    return v


def answer_exec(f):
    v = execute(f["source"], context(f["context"]))
    figures()
    if v is None:
        return ""
    out = ',"result":%s' % fit(represent(v))
    if type(v) in VALUES:
        try:
            value = encode(v)
        except (TypeError, ValueError, RecursionError):
            return out
        if len(value) + len(out) < st.wire.bound - 1024:
            out += ',"value":' + value
    return out


def answer_call(f):
    ns = context(f["context"])
    v = resolve(f["target"], ns)(*f["args"], **f["kwargs"])
    if hasattr(v, "__await__"):
        v = await_(as_coroutine(v))
    return ',"value":' + encode(v)


async def as_coroutine(v):
    return await v


def begin(f):
    if f["v"] != ABI:
        raise Broken("version %d" % f["v"])
    st.cell.id = f["cell"]
    if f["frame"] < st.wire.bound:
        st.wire.bound = f["frame"]
    os.environ.update(f["env"] or {})
    st.imports = None if f["imports"] is None else frozenset(f["imports"])
    if f["dir"]:
        os.chdir(f["dir"])
        if f["dir"] not in sys.path:
            sys.path.insert(0, f["dir"])
    return ""


ANSWERS = {"open": begin, "exec": answer_exec, "call": answer_call}


def answer(f):
    """Carries an operation out and reports its end."""
    n = f["id"]
    refresh()
    st.op = n
    end = None
    try:
        try:
            st.running = True
            end = '{"t":"done","id":%d,"ok":true%s}' % (n, ANSWERS[f["t"]](f))
            if len(end) > st.wire.bound:
                raise ValueError("the value has %d bytes of JSON, at most %d fit into a frame" % (len(end), st.wire.bound))
        finally:
            st.running = False
    except Broken:
        raise
    except BaseException as e:
        st.running = False
        end = '{"t":"done","id":%d,"ok":false,"error":%s}' % (n, encode(fault(e)))
    st.pending = False
    flush()
    if getpid() != st.pid:
        os._exit(0)  # a fork of user code that came back to us
    st.op = 0
    st.wire.send(end)


def flush():
    for f in (sys.stdout, sys.stderr, st.out, st.err):
        try:
            f.flush()
        except Exception:
            pass  # closed by user code: nothing of it is left to flush


def refresh():
    """Reopens outputs that user code closed."""
    for fd, spare in ((1, st.spare_out), (2, st.spare_err)):
        try:
            os.fstat(fd)
        except OSError:
            os.dup2(spare, fd)


def stream(fd):
    import io

    return io.TextIOWrapper(io.BufferedWriter(io.FileIO(fd, "w", closefd=False), 8192), "utf-8", "backslashreplace", line_buffering=True)


class NoInput:
    """Standard input of a cell."""

    encoding, closed = "utf-8", False

    def read(self, *_):
        return no_input()

    readline = readlines = __next__ = read

    def __iter__(self):
        return self

    def fileno(self):
        return 0

    def isatty(self):
        return False

    def readable(self):
        return False

    def close(self):
        pass


def serve(fd):
    """Is a cell until the other side goes away."""
    import fcntl

    st.pid, st.main = getpid(), get_ident()
    fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    st.wire = Wire(fd, 16 << 20)
    st.spare_out = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 100)
    st.spare_err = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 100)
    st.out, st.err = stream(1), stream(2)
    sys.stdout = sys.__stdout__ = st.out
    sys.stderr = sys.__stderr__ = st.err
    sys.stdin = sys.__stdin__ = NoInput()
    sys.argv = [""]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [""]
    st.cell = Cell()
    signal.signal(signal.SIGINT, interrupted)
    os.environ.setdefault("MPLBACKEND", "agg")
    st.wire.send(encode({"t": "hello", "v": ABI, "language": "python", "version": sys.version.split()[0]}))
    try:
        while True:
            f = wait(lambda: st.ops.pop(0) if st.ops else None)
            answer(f)
    except EOFError:
        os._exit(0)
    except Broken as e:
        os.write(2, ("belljar: the supervisor broke the protocol: %s\n" % e).encode())
        os._exit(70)


# Confinement of one cell among others. The sandbox around them is the boundary.

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT, CLOSED = 444, 445, 446, 3
READ_EXEC = 1 << 0 | 1 << 2 | 1 << 3
ALL_FS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
ON_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
IPC = {
    "x86_64": (29, 30, 31, 64, 65, 66, 67, 68, 69, 70, 71, 220, 240),
    "aarch64": (180, 186, 187, 188, 189, 190, 191, 192, 193, 194, 195, 196, 197),
}


class Kernel:
    """System calls that the standard library lacks."""

    def __init__(self):
        import ctypes

        self.c = ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        self.syscall, self.prctl = libc.syscall, libc.prctl
        self.syscall.restype = ctypes.c_long
        self.prctl.restype = ctypes.c_int
        self.abi = self.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))

    def check(self, n, what):
        if n < 0:
            e = self.c.get_errno()
            raise OSError(e, "%s: %s" % (what, os.strerror(e)))
        return n

    def undumpable(self):
        self.check(self.prctl(4, self.c.c_ulong(0), 0, 0, 0), "prctl PR_SET_DUMPABLE")

    def ruleset(self, private):
        """Makes the rules of a cell's own Landlock domain: no signal and no abstract socket
        leaves it, nobody outside is traced, and with private files, those of the
        others are out of reach."""
        c = self.c
        if self.abi < 6:
            raise OSError(38, "Landlock with scopes (Linux 6.12) is not here: ABI %d" % self.abi)
        every = (1 << 16) - 1
        handled = every if private else 1 << 13  # REFER is denied unless it is granted
        attr = (c.c_uint64 * 3)(handled, 0, CLOSED)
        fd = self.check(self.syscall(LANDLOCK_CREATE, attr, c.c_size_t(24), c.c_uint(0)), "landlock_create_ruleset")

        def grant(path, access):
            try:
                at = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                return  # not part of this tree
            try:
                if not os.path.isdir(path):
                    access &= ON_FILES
                r = c.create_string_buffer(pack("=Qi", access, at), 12)  # packed, landlock_add_rule(2)
                self.check(self.syscall(LANDLOCK_ADD, c.c_int(fd), c.c_int(1), r, c.c_uint(0)), "landlock_add_rule " + path)
            finally:
                os.close(at)

        if not private:
            grant("/", handled)
            return fd
        hidden = private["hide"]
        for name in os.listdir("/"):
            path = "/" + name
            if name != "dev" and not os.path.islink(path) and not any((h + "/").startswith(path + "/") for h in hidden):
                grant(path, READ_EXEC)
        for path in private["read"]:
            grant(path, READ_EXEC)
        for name in ("null", "zero", "full", "random", "urandom", "tty", "pts"):
            grant("/dev/" + name, 1 << 1 | 1 << 2 | 1 << 3 | 1 << 14 | 1 << 15)
        grant(private["dir"], every)
        return fd

    def restrict(self, fd):
        """Makes a new domain of these rules and puts this process into it."""
        self.check(self.syscall(LANDLOCK_RESTRICT, self.c.c_int(fd), self.c.c_uint(0)), "landlock_restrict_self")

    def no_ipc(self):
        """Refuses System V objects and POSIX queues, which all cells of a sandbox share."""
        calls = IPC.get(os.uname().machine)
        if calls is None:
            raise OSError(38, "no list of system calls for " + os.uname().machine)
        n = len(calls)
        prog = pack("HBBI", 0x20, 0, 0, 0)  # load the call's number
        for i, nr in enumerate(calls):
            prog += pack("HBBI", 0x15, n - i, 0, nr)
        prog += pack("HBBI", 0x06, 0, 0, 0x7FFF0000)  # allow
        prog += pack("HBBI", 0x06, 0, 0, 0x00050001)  # EPERM
        buf = self.c.create_string_buffer(prog)

        class Prog(self.c.Structure):
            _fields_ = [("len", self.c.c_ushort), ("filter", self.c.c_void_p)]

        p = Prog(n + 3, self.c.addressof(buf))
        self.check(self.prctl(22, self.c.c_ulong(2), self.c.byref(p), 0, 0), "prctl PR_SET_SECCOMP")


def confine(kernel, private, shared=-1):
    """Parts this process from its siblings; shared are the rules of one without files of
    its own."""
    if private:
        os.makedirs(private["dir"] + "/tmp", 0o700, exist_ok=True)
        os.environ.update(HOME=private["dir"], TMPDIR=private["dir"] + "/tmp")
        if "tempfile" in sys.modules:
            sys.modules["tempfile"].tempdir = None
    kernel.undumpable()
    kernel.restrict(kernel.ruleset(private) if private or shared < 0 else shared)
    if private:
        kernel.no_ipc()


def outputs(out, err):
    os.dup2(out, 1)
    os.dup2(err, 2)


def process(cfg):
    """A cell in an interpreter of its own: 3 is the channel, 4 and 5 are its outputs."""
    outputs(4, 5)
    os.close(4)
    os.close(5)
    if cfg.get("confine"):
        try:
            confine(Kernel(), cfg.get("private"))
            os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        except (OSError, ImportError) as e:
            os.write(2, ("confine: %s\n" % e).encode())
            os._exit(72)
    serve(3)


def zygote(cfg):
    """Loads modules and forks cells from there; 3 is a packet socket."""
    import gc
    import importlib
    import socket

    ctl = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, 3)

    def say(**f):
        ctl.send(encode(f).encode("ascii"))

    try:
        kernel = Kernel()
        kernel.undumpable()
        shared = kernel.ruleset(None)
    except (OSError, ImportError) as e:
        say(t="failed", message=str(e))
        os._exit(72)
    for name in ["io", "select", "fcntl", "struct", "random", "base64"] + cfg["preload"]:
        try:
            importlib.import_module(name)
        except BaseException as e:
            say(t="failed", message="preload %s: %s: %s" % (name, type(e).__name__, e))
            os._exit(72)
        n = len(os.listdir("/proc/self/task"))
        if n != 1:
            say(t="failed", message="preload %s: it started %d threads, which a fork does not have" % (name, n - 1))
            os._exit(72)
    # Each cell reaps its own; ours are reaped by the kernel.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    if hasattr(gc, "freeze"):
        gc.freeze()
    say(t="ready", version=sys.version.split()[0])
    while True:
        data, anc, _, _ = ctl.recvmsg(65536, socket.CMSG_SPACE(12))
        if not data:
            os._exit(0)
        fds = []
        for _, _, raw in anc:
            for i in range(0, len(raw) - 3, 4):
                fds.append(int.from_bytes(raw[i : i + 4], sys.byteorder))
        f = json.loads(data.decode())
        try:
            pid = os.fork()
        except OSError as e:
            say(t="failed", id=f["id"], message="fork: %s" % e)
            pid = -1
        if pid == 0:
            child(kernel, fds, f, shared)
        for fd in fds:
            os.close(fd)


def child(kernel, fds, f, shared):
    """Turns a fork into a cell. No user code has run in it yet."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        outputs(fds[1], fds[2])
        os.dup2(fds[0], 3)
        confine(kernel, f.get("private"), shared)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        reseed()
    except BaseException as e:
        os.write(2, ("confine: %s\n" % e).encode())
        os._exit(72)
    try:
        serve(3)
    finally:
        os._exit(70)


def reseed():
    """Gives a fork randomness and clocks of its own, where libraries do not by themselves."""
    mods = sys.modules  # random sees to itself (bpo-16500)
    for name in ("numpy.random", "torch"):
        m = mods.get(name)
        if m is not None:
            m.seed()
    log = mods.get("logging")
    if log is not None and hasattr(log, "_startTime"):
        log._startTime = time.time_ns() if log._startTime > 1 << 40 else time.time()
    tf = mods.get("tempfile")
    if tf is not None:
        tf._name_sequence = None


{"process": process, "zygote": zygote}[MODE](CONFIG)
