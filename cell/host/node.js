// The JavaScript host of belljar cells: one file, Node 18 and later, nothing but
// Node's own modules. It runs inside the sandbox beside the user's code, shares its
// fate, and is believed for nothing that limits or counts. 3 is the channel.
'use strict';
const vm = require('vm');
const net = require('net');
const util = require('util');
const path = require('path');
const { createRequire } = require('module');

const ABI = 1;
const LONGEST_TEXT = 65536;
const HOST = /^\s+at .*(?:\bnode:|\[eval\]|evalmachine|\[eval1?\])/;

let bound = 16 << 20;
let dir = process.cwd();
let id = '';
let op = null; // {id, reject}
let requests = 0;
let count = 0;
const contexts = new Map();
const posts = []; // messages nobody asked for yet
const receivers = []; // those who wait for one
const replies = new Map();
const queue = []; // operations
let working = false;

const socket = new net.Socket({ fd: 3, readable: true, writable: true });
let pending = Buffer.alloc(0);

function die(why, code) {
  process.stderr.write('belljar: the supervisor broke the protocol: ' + why + '\n');
  process.exit(code);
}

socket.on('data', (chunk) => {
  pending = pending.length ? Buffer.concat([pending, chunk]) : chunk;
  for (;;) {
    const end = pending.indexOf(10);
    if (end < 0) {
      if (pending.length > 9) die('a long length', 70);
      return;
    }
    const head = pending.toString('latin1', 0, end);
    if (!/^[1-9][0-9]{0,8}$/.test(head) || +head > bound) die('a bad length', 70);
    if (pending.length < end + 1 + +head) return;
    const body = pending.subarray(end + 1, end + 1 + +head);
    pending = pending.subarray(end + 1 + +head);
    let f;
    try {
      f = JSON.parse(body.toString('utf8'));
    } catch (e) {
      die(e.message, 70);
    }
    if (f === null || typeof f !== 'object' || Array.isArray(f)) die('no object', 70);
    route(f);
  }
});
socket.on('end', () => process.exit(0));
socket.on('error', () => process.exit(0));

function route(f) {
  switch (f.t) {
    case 'post': {
      const r = receivers.shift();
      if (r) r(f.value);
      else posts.push(f.value);
      return;
    }
    case 'reply': {
      const r = replies.get(f.id);
      replies.delete(f.id);
      if (r) r(f);
      return;
    }
    case 'open':
    case 'exec':
    case 'call':
      queue.push(f);
      work();
      return;
    default:
      die('no such frame', 70);
  }
}

function send(f) {
  const body = Buffer.from(JSON.stringify(f), 'utf8');
  if (body.length > bound) throw new RangeError(`${body.length} bytes of JSON, at most ${bound} fit into a frame`);
  socket.write(Buffer.concat([Buffer.from(body.length + '\n', 'latin1'), body]));
}

// What user code sees as `cell`.
class Refused extends Error {
  get name() {
    return 'Refused';
  }
}

const cell = {
  get id() {
    return id;
  },
  Refused,
  post(message) {
    send({ t: 'post', value: json(message) });
  },
  recv(timeout) {
    if (posts.length) return Promise.resolve(posts.shift());
    return new Promise((resolve, reject) => {
      let timer;
      const take = (m) => {
        clearTimeout(timer);
        resolve(m);
      };
      receivers.push(take);
      if (timeout !== undefined) {
        timer = setTimeout(() => {
          receivers.splice(receivers.indexOf(take), 1);
          reject(new Error(`no message within ${timeout} s`));
        }, timeout * 1000);
      }
    });
  },
  log(level, message, fields) {
    if (!['debug', 'info', 'warning', 'error'].includes(level)) throw new RangeError('level is debug, info, warning or error');
    const f = { t: 'log', level, message: String(message) };
    if (fields !== undefined) f.fields = { ...fields };
    send(f);
  },
  metric(name, value, tags) {
    if (typeof name !== 'string' || !name || Buffer.byteLength(name) > 128) throw new RangeError('a metric has a name of up to 128 bytes');
    if (!Number.isFinite(value)) throw new RangeError('a metric is a finite number');
    const f = { t: 'metric', name, value };
    if (tags !== undefined) f.tags = Object.fromEntries(Object.entries(tags).map(([k, v]) => [k, String(v)]));
    send(f);
  },
  request(capability, action, payload = null) {
    for (const s of [capability, action]) {
      if (typeof s !== 'string' || !s || Buffer.byteLength(s) > 128) throw new RangeError('capability and action are names of up to 128 bytes');
    }
    const n = ++requests;
    return new Promise((resolve, reject) => {
      replies.set(n, (f) => (f.ok ? resolve(f.value) : reject(new Refused(f.error || 'refused'))));
      send({ t: 'request', id: n, capability, action, payload: json(payload) });
    });
  },
};

// json returns what JSON makes of a value, and throws where it would drop it.
function json(v) {
  const s = JSON.stringify(v);
  if (s === undefined) throw new TypeError(`${typeof v} is no JSON value`);
  return v;
}

function display(...values) {
  if (!op) throw new Error('no operation runs');
  for (const v of values) send({ t: 'display', id: op.id, data: fit(represent(v)) });
}
display.html = (s) => show({ 'text/html': String(s) });
display.markdown = (s) => show({ 'text/markdown': String(s) });
display.svg = (s) => show({ 'image/svg+xml': String(s) });
display.png = (b) => show({ 'image/png': Buffer.from(b).toString('base64') });
display.mime = (data) => show({ ...data });

function show(data) {
  if (!op) throw new Error('no operation runs');
  send({ t: 'display', id: op.id, data: fit(data) });
}

const METHODS = [
  ['text/html', ['_repr_html_', '_toHtml', 'toHTML']],
  ['text/markdown', ['_repr_markdown_', '_toMarkdown']],
  ['image/svg+xml', ['_repr_svg_', '_toSvg']],
  ['image/png', ['_repr_png_', '_toPng']],
  ['image/jpeg', ['_repr_jpeg_', '_toJpeg']],
  ['application/json', ['_repr_json_']],
];

function represent(v) {
  let text;
  try {
    text = util.inspect(v, { depth: 4, maxArrayLength: 200, maxStringLength: LONGEST_TEXT });
  } catch (e) {
    text = '<its inspection threw>';
  }
  if (text.length > LONGEST_TEXT) text = text.slice(0, LONGEST_TEXT) + `... ${text.length - LONGEST_TEXT} more characters`;
  const data = { 'text/plain': text };
  if (v === null || (typeof v !== 'object' && typeof v !== 'function')) return data;
  for (const [mime, names] of METHODS) {
    for (const name of names) {
      try {
        if (typeof v[name] !== 'function') continue;
        const got = v[name]();
        if (got === undefined || got === null) continue;
        data[mime] = got instanceof Uint8Array ? Buffer.from(got).toString('base64') : json(got);
        break;
      } catch (e) {
        // What cannot show itself is shown as text.
      }
    }
  }
  return data;
}

function fit(data) {
  const room = bound - 1024;
  const size = (k) => Buffer.byteLength(JSON.stringify(data[k])) + k.length + 16;
  const left = [];
  for (;;) {
    const keys = Object.keys(data);
    if (!keys.length || keys.reduce((n, k) => n + size(k), 0) <= room) break;
    const worst = keys.reduce((a, b) => (size(a) >= size(b) ? a : b));
    left.push(`${worst} (${size(worst)} bytes)`);
    delete data[worst];
  }
  if (left.length) data['text/plain'] = 'too large for a frame: ' + left.join(', ');
  return data;
}

function fault(e) {
  let name = 'Error';
  let message = '';
  let lines = [];
  try {
    if (e !== null && typeof e === 'object' && 'message' in e) {
      name = String(e.name || 'Error').slice(0, 200) || 'Error';
      message = String(e.message);
      lines = String(e.stack || '').split('\n').filter((l) => !HOST.test(l));
    } else {
      name = 'Thrown';
      message = util.inspect(e);
    }
  } catch (again) {
    message = 'the error could not be read';
  }
  const clip = (s) => (s.length > 4096 ? s.slice(0, 4096) + '...' : s);
  return { name, message: clip(message), traceback: lines.slice(-200).map(clip) };
}

function context(name) {
  let c = contexts.get(name);
  if (c) return c;
  const g = {
    console,
    process,
    Buffer,
    URL,
    URLSearchParams,
    TextEncoder,
    TextDecoder,
    AbortController,
    AbortSignal,
    Event,
    EventTarget,
    performance,
    setTimeout,
    clearTimeout,
    setInterval,
    clearInterval,
    setImmediate,
    clearImmediate,
    queueMicrotask,
    structuredClone,
    atob,
    btoa,
    cell,
    display,
    require: createRequire(path.join(dir, 'cell.js')),
  };
  for (const k of ['fetch', 'Headers', 'Request', 'Response', 'FormData', 'crypto', 'WebSocket', 'Blob']) {
    if (globalThis[k] !== undefined) g[k] = globalThis[k];
  }
  c = vm.createContext(g, { name: name || 'cell' });
  g.globalThis = g.global = c;
  contexts.set(name, c);
  return c;
}

// Node tells everybody that its loader for vm is experimental; nobody here asked.
const emitWarning = process.emitWarning;
process.emitWarning = (warning, ...rest) => {
  if (!String(warning).includes('USE_MAIN_CONTEXT_DEFAULT_LOADER')) Reflect.apply(emitWarning, process, [warning, ...rest]);
};
const importing = vm.constants && vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER;

function compile(source, filename, lineOffset = 0) {
  const o = { filename, lineOffset };
  if (importing) o.importModuleDynamically = importing;
  return new vm.Script(source, o);
}

// execute runs source and returns the value that it ends with.
function execute(source, name) {
  const c = context(name);
  const filename = `<cell ${++count}>`;
  let script;
  try {
    script = compile(source, filename);
  } catch (e) {
    if (!/\bawait\b/.test(source)) throw e;
    script = wrap(source, filename, e);
  }
  return script.runInContext(c, { breakOnSigint: true, displayErrors: false });
}

// wrap makes an async function of source that awaits at its top. What it declares at
// the top becomes global, and its last expression is its value; the engine itself is
// asked where statements end.
function wrap(source, filename, first) {
  const { breaks, names } = outline(source);
  const out = names.length ? `;Object.assign(globalThis,{${names.join(',')}});` : ';';
  for (const at of breaks.reverse()) {
    const last = source.slice(at).replace(/^[\s;]+/, '').replace(/[\s;]+$/, '');
    if (!last || /^(?:const|let|var|function|class|return|throw|if|for|while|do|switch|try|async\s+function)\b/.test(last)) continue;
    try {
      return compile(`(async()=>{${source.slice(0, at)}\n;const __value=(${last}\n)${out}return __value})()`, filename);
    } catch (e) {
      // Not a statement of its own: look further up.
    }
  }
  try {
    return compile(`(async()=>{${source}\n${out}})()`, filename);
  } catch (e) {
    throw first;
  }
}

// outline returns where statements may begin at the top of source, and what is
// declared there. It skips strings, templates, comments and brackets; a regular
// expression that holds brackets or quotes may mislead it, which costs a name.
function outline(source) {
  const breaks = [0];
  const names = [];
  let depth = 0;
  const token = /\/\/[^\n]*|\/\*[\s\S]*?\*\/|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`(?:\\[\s\S]|[^`\\])*`|[{}()[\];\n]|\b(?:const|let|var|class|function)\b\*?|[\w$]+/g;
  let m;
  while ((m = token.exec(source))) {
    const t = m[0];
    if (t === '{' || t === '(' || t === '[') depth++;
    else if (t === '}' || t === ')' || t === ']') {
      depth--;
      if (t === '}' && depth === 0) breaks.push(token.lastIndex);
    } else if (depth === 0 && (t === ';' || t === '\n')) breaks.push(token.lastIndex);
    else if (depth === 0 && /^(?:const|let|var|class|function)\*?$/.test(t)) {
      const rest = source.slice(token.lastIndex);
      const one = /^\s+([A-Za-z_$][\w$]*)/.exec(rest);
      const many = /^\s*[{[]([^}\]]*)[}\]]\s*=/.exec(rest);
      if (one) names.push(one[1]);
      else if (many) {
        for (const part of many[1].split(',')) {
          const n = /^\s*(?:\.\.\.)?(?:[\w$]+\s*:\s*)?([A-Za-z_$][\w$]*)\s*(?:=.*)?$/s.exec(part);
          if (n) names.push(n[1]);
        }
      }
    }
  }
  return { breaks, names: [...new Set(names)] };
}

function begin(f) {
  if (f.v !== ABI) die('version ' + f.v, 70);
  id = f.cell;
  bound = Math.min(bound, f.frame);
  Object.assign(process.env, f.env || {});
  if (f.dir) {
    process.chdir(f.dir);
    dir = f.dir;
  }
}

function call(f) {
  let self;
  const [first, ...rest] = f.target.split('.');
  if (!/^[A-Za-z_$][\w$]*$/.test(first)) throw new ReferenceError(`${first} is not defined`);
  let v = vm.runInContext(first, context(f.context), { breakOnSigint: true });
  for (const name of rest) {
    self = v;
    v = v[name];
  }
  if (typeof v !== 'function') throw new TypeError(`${f.target} is not a function`);
  const args = [...f.args];
  if (Object.keys(f.kwargs).length) args.push(f.kwargs); // as options come in this language
  return Reflect.apply(v, self, args);
}

async function work() {
  if (working) return;
  working = true;
  while (queue.length) await answer(queue.shift());
  working = false;
}

async function answer(f) {
  let end;
  const interrupt = new Promise((_, reject) => {
    op = { id: f.id, reject };
  });
  interrupt.catch(() => {});
  try {
    if (f.t === 'open') {
      begin(f);
      end = { t: 'done', id: f.id, ok: true };
    } else {
      const got = f.t === 'exec' ? execute(f.source, f.context) : call(f);
      const v = await Promise.race([got, interrupt]);
      end = { t: 'done', id: f.id, ok: true };
      if (f.t === 'call') end.value = v === undefined ? null : json(v);
      else if (v !== undefined) {
        end.result = fit(represent(v));
        let s;
        try {
          s = typeof v === 'function' ? undefined : JSON.stringify(v);
        } catch (e) {
          // Circular, or a BigInt: it has a text.
        }
        if (s !== undefined && s.length < bound / 4) end.value = v;
      }
      if (Buffer.byteLength(JSON.stringify(end)) > bound) throw new RangeError(`the value does not fit into a frame of ${bound} bytes`);
    }
  } catch (e) {
    end = { t: 'done', id: f.id, ok: false, error: fault(e) };
  }
  op = null;
  send(end);
}

process.on('SIGINT', () => {
  if (op) op.reject(Object.assign(new Error('interrupted'), { name: 'Interrupted' }));
});
for (const event of ['unhandledRejection', 'uncaughtException']) {
  process.on(event, (e) => process.stderr.write(fault(e).traceback.join('\n') + '\n'));
}

send({ t: 'hello', v: ABI, language: 'javascript', version: process.versions.node });
