// Client of the engine's service, for Node, without dependencies. What it promises is in
// index.d.ts.

import { randomBytes } from "node:crypto";
import * as http from "node:http";
import * as https from "node:https";
import { setTimeout as sleep } from "node:timers/promises";

export const DEFAULT_SOCKET = "/run/engine/api.sock";

const maxReply = 256 << 20;

export class EngineError extends Error {
  constructor(failure, status, requestId) {
    const { class: errorClass, kind, message, fix } = failure.error;
    super(fix ? `${message} (${fix})` : message);
    this.name = "EngineError";
    this.class = errorClass;
    this.kind = kind;
    this.fix = fix;
    this.status = status;
    this.requestId = requestId;
    this.violations = failure.violations ?? [];
    this.sandbox = failure.sandbox;
  }
}

export class Engine {
  #options;
  #agent;
  #secure;

  constructor(options = {}) {
    this.#options = { socketPath: DEFAULT_SOCKET, patienceMs: 30_000, ...options };
    this.#secure = options.url !== undefined;
    if (this.#secure && new URL(options.url).protocol !== "https:") {
      throw new TypeError("url must begin with https:");
    }
    const keep = { keepAlive: true, maxSockets: 64 };
    this.#agent = this.#secure ? new https.Agent({ ...keep, ...options.tls }) : new http.Agent(keep);
  }

  close() {
    this.#agent.destroy();
  }

  // fetch sends one request and resolves once the head of the answer is there. A status of
  // 400 or more is an answer like any other.
  fetch(path, { method = "GET", query, headers = {}, body, signal } = {}) {
    const search = [];
    for (const [name, value] of Object.entries(query ?? {})) {
      for (const one of Array.isArray(value) ? value : [value]) {
        if (one !== undefined && one !== "") search.push(`${name}=${quote(one)}`);
      }
    }
    const target = search.length > 0 ? `${path}?${search.join("&")}` : path;
    const all = { ...headers };
    let stream;
    if (body !== undefined) {
      if (typeof body === "string" || body instanceof Uint8Array) {
        all["Content-Length"] = String(Buffer.byteLength(body));
      } else {
        stream = body;
      }
    }
    if (this.#options.token !== undefined) all.Authorization = `Bearer ${this.#options.token}`;
    const where = this.#secure ? this.#where(target) : { socketPath: this.#options.socketPath, path: target };
    return new Promise((resolve, reject) => {
      const send = this.#secure ? https.request : http.request;
      const req = send({ ...where, method, headers: all, agent: this.#agent, signal }, (res) => resolve(new Answer(res)));
      req.on("error", reject);
      if (stream === undefined) {
        req.end(body);
        return;
      }
      pump(stream, req).catch((err) => req.destroy(err));
    });
  }

  #where(target) {
    const url = new URL(this.#options.url);
    return { host: url.hostname, port: url.port || 443, path: target };
  }

  // #ask sends JSON and returns JSON. What may be asked twice is asked again while the
  // service cannot be reached.
  async #ask(method, path, { query, body, signal, once = false } = {}) {
    const text = body === undefined ? undefined : JSON.stringify(body);
    for await (const left of this.#tries(signal)) {
      try {
        const res = await this.fetch(path, { method, query, body: text, signal });
        return await res.json();
      } catch (err) {
        if (err instanceof EngineError || signal?.aborted || !left || (once && !neverSent(err))) throw err;
      }
    }
    throw new Error("internal error: no try was made");
  }

  // #tries yields until the patience is over, with pauses that grow: false at the last time.
  async *#tries(signal) {
    const end = Date.now() + this.#options.patienceMs;
    for (let pause = 50; ; pause = Math.min(2 * pause, 2000)) {
      const left = Date.now() < end;
      yield left;
      if (!left) return;
      await sleep(pause / 2 + Math.random() * pause, undefined, { signal });
    }
  }

  // #follow yields the events of one name from a cursor on. A stream that was cut is taken
  // up again behind the last event that was seen.
  async *#follow(path, name, cursor, signal) {
    for (;;) {
      let progress = false;
      let failure;
      for await (const left of this.#tries(signal)) {
        try {
          const res = await this.fetch(path, { headers: { Accept: "text/event-stream", "Last-Event-ID": String(cursor) }, signal });
          await res.check();
          for await (const event of res.events()) {
            if (event.event === "done") return;
            if (event.event === "error") throw new EngineError(event.data, 0, res.requestId);
            if (event.event !== name) continue;
            progress = true;
            if (event.id) cursor = event.id;
            yield event.data;
          }
        } catch (err) {
          if (signal?.aborted || (err instanceof EngineError && err.kind !== "draining")) throw err;
          failure = err;
        }
        if (progress) break;
        if (!left) throw failure ?? new Error(`cannot follow ${path}: the stream is cut again and again`);
      }
      await sleep(20, undefined, { signal });
    }
  }

  startRun(request, { signal } = {}) {
    return this.#ask("POST", "/v1/runs", { body: { id: newRunId(), ...request }, signal });
  }

  run(id, { signal } = {}) {
    return this.#ask("GET", at("runs", id), { signal });
  }

  runs(filter = {}, { signal } = {}) {
    return this.#ask("GET", "/v1/runs", { query: filter, signal });
  }

  async waitRun(id, { signal } = {}) {
    for (;;) {
      const run = await this.#ask("GET", at("runs", id, "wait"), { signal });
      if (run.result !== null) return run;
      await sleep(50, undefined, { signal });
    }
  }

  killRun(id, { signal } = {}) {
    return this.#ask("POST", at("runs", id, "kill"), { signal });
  }

  async deleteRun(id, { signal } = {}) {
    try {
      await this.#ask("DELETE", at("runs", id), { signal });
    } catch (err) {
      if (err.kind !== "not_found") throw err;
    }
  }

  runOutput(id, offset = 0, { signal } = {}) {
    return this.#ask("GET", at("runs", id, "logs"), { query: { offset }, signal });
  }

  async *followRun(id, offset = 0, { signal } = {}) {
    yield* withBytes(this.#follow(at("runs", id, "logs"), "output", offset, signal));
  }

  createSandbox(request, { signal } = {}) {
    return this.#ask("POST", "/v1/sandboxes", { body: request, signal });
  }

  sandbox(id, { signal } = {}) {
    return this.#ask("GET", at("sandboxes", id), { signal });
  }

  sandboxes(filter = {}, { signal } = {}) {
    return this.#ask("GET", "/v1/sandboxes", { query: chosen(filter), signal });
  }

  async removeSandbox(id, { signal } = {}) {
    await this.#ask("DELETE", at("sandboxes", id), { signal });
  }

  removeSandboxes(filter, { signal } = {}) {
    return this.#ask("DELETE", "/v1/sandboxes", { query: chosen(filter), signal });
  }

  liveness(id, { signal } = {}) {
    return this.#ask("GET", at("sandboxes", id, "liveness"), { signal });
  }

  renewSandbox(id, ttlSeconds, { signal } = {}) {
    return this.#ask("POST", at("sandboxes", id, "renew"), { body: { ttlSeconds }, signal });
  }

  pauseSandbox(id, { signal } = {}) {
    return this.#ask("POST", at("sandboxes", id, "pause"), { signal });
  }

  resumeSandbox(id, { signal } = {}) {
    return this.#ask("POST", at("sandboxes", id, "resume"), { signal });
  }

  sandboxStats(id, { signal } = {}) {
    return this.#ask("GET", at("sandboxes", id, "stats"), { signal });
  }

  estimate(inputs, { signal } = {}) {
    return this.#ask("POST", "/v1/estimate", { body: { inputs }, signal });
  }

  startExec(sandbox, request, { signal } = {}) {
    return this.#ask("POST", at("sandboxes", sandbox, "execs"), { body: { id: newRunId(), ...request }, signal });
  }

  execs(sandbox, { signal } = {}) {
    return this.#ask("GET", at("sandboxes", sandbox, "execs"), { signal });
  }

  exec(sandbox, id, { signal } = {}) {
    return this.#ask("GET", at("sandboxes", sandbox, "execs", id), { signal });
  }

  async waitExec(sandbox, id, { signal } = {}) {
    for (;;) {
      const exec = await this.#ask("GET", at("sandboxes", sandbox, "execs", id, "wait"), { signal });
      if (exec.result !== null) return exec;
      await sleep(50, undefined, { signal });
    }
  }

  async *followExec(sandbox, id, cursor = "", { signal } = {}) {
    yield* withBytes(this.#follow(at("sandboxes", sandbox, "execs", id, "events"), "exec", cursor, signal));
  }

  async writeStdin(sandbox, id, body, { close = false, signal } = {}) {
    const res = await this.fetch(at("sandboxes", sandbox, "execs", id, "stdin"), { method: "POST", query: { close }, body, signal });
    return res.json();
  }

  signalExec(sandbox, id, signalName, { signal } = {}) {
    return this.#ask("POST", at("sandboxes", sandbox, "execs", id, "signal"), { body: { signal: String(signalName) }, signal, once: true });
  }

  resizeExec(sandbox, id, size, { signal } = {}) {
    return this.#ask("POST", at("sandboxes", sandbox, "execs", id, "resize"), { body: size, signal });
  }

  async readFile(sandbox, path, { offset, limit, signal } = {}) {
    const res = await this.fetch(at("sandboxes", sandbox, "files", "content"), { query: { path, offset, limit }, signal });
    await res.check();
    return res;
  }

  async writeFile(sandbox, path, body, { mode, parents, exclusive, signal } = {}) {
    const query = { path, mode: mode === undefined ? undefined : mode.toString(8), parents, exclusive };
    const res = await this.fetch(at("sandboxes", sandbox, "files", "content"), { method: "PUT", query, body, signal });
    return res.json();
  }

  statFile(sandbox, path, { follow, signal } = {}) {
    return this.#ask("GET", at("sandboxes", sandbox, "files", "stat"), { query: { path, follow }, signal });
  }

  async *listFiles(sandbox, path, { signal } = {}) {
    for (let after = ""; ; ) {
      const page = await this.#ask("GET", at("sandboxes", sandbox, "files", "list"), { query: { path, after }, signal });
      yield* page.entries;
      after = page.next;
      if (after === "") return;
    }
  }

  async mkdir(sandbox, request, { signal } = {}) {
    await this.#ask("POST", at("sandboxes", sandbox, "files", "mkdir"), { body: request, signal });
  }

  async moveFile(sandbox, request, { signal } = {}) {
    await this.#ask("POST", at("sandboxes", sandbox, "files", "move"), { body: request, signal, once: true });
  }

  async removeFile(sandbox, path, { recursive, signal } = {}) {
    await this.#ask("DELETE", at("sandboxes", sandbox, "files"), { query: { path, recursive }, signal });
  }

  async *watchFiles(sandbox, path, { recursive, signal } = {}) {
    const res = await this.fetch(at("sandboxes", sandbox, "files", "watch"), {
      query: { path, recursive }, headers: { Accept: "text/event-stream" }, signal,
    });
    await res.check();
    for await (const event of res.events()) {
      if (event.event === "error") throw new EngineError(event.data, 0, res.requestId);
      if (event.event === "file") yield event.data;
    }
    throw new Error(`cannot watch ${path} any longer: the stream was cut`);
  }

  async exportFiles(sandbox, path, { signal } = {}) {
    const res = await this.fetch(at("sandboxes", sandbox, "files", "archive"), { query: { path }, signal });
    await res.check();
    return res;
  }

  async importFiles(sandbox, path, body, { signal } = {}) {
    const res = await this.fetch(at("sandboxes", sandbox, "files", "archive"), { method: "PUT", query: { path }, body, signal });
    return res.json();
  }

  capabilities(project, { signal } = {}) {
    return this.#ask("GET", "/v1/capabilities", { query: { project }, signal });
  }

  async call(project, name, call = {}, { onProgress, signal } = {}) {
    const path = at("projects", project, "capabilities", name, "call");
    if (onProgress === undefined) return this.#ask("POST", path, { body: call, signal, once: true });
    const res = await this.fetch(path, { method: "POST", body: JSON.stringify(call), headers: { Accept: "text/event-stream" }, signal });
    await res.check();
    for await (const event of res.events()) {
      if (event.event === "progress") onProgress(event.data.line);
      if (event.event === "reply") return event.data;
      if (event.event === "error") throw new EngineError(event.data, 0, res.requestId);
    }
    throw new Error(`cannot tell what came of ${name}: the stream was cut`);
  }

  images({ signal } = {}) {
    return this.#ask("GET", "/v1/images", { signal });
  }

  image(name, { signal } = {}) {
    return this.#ask("GET", `/v1/images/${encodeURI(name)}`, { signal });
  }

  draining({ signal } = {}) {
    return this.#ask("GET", "/v1/drain", { signal });
  }

  setDraining(draining, { signal } = {}) {
    return this.#ask("PUT", "/v1/drain", { body: { draining }, signal });
  }

  collect(request = {}, { signal } = {}) {
    return this.#ask("POST", "/v1/gc", { body: request, signal });
  }

  version({ signal } = {}) {
    return this.#ask("GET", "/v1/version", { signal });
  }

  health({ signal } = {}) {
    return this.#health("/v1/healthz", signal);
  }

  ready({ signal } = {}) {
    return this.#health("/v1/readyz", signal);
  }

  async #health(path, signal) {
    const res = await this.fetch(path, { signal });
    const answer = JSON.parse(await res.text());
    if (answer.checks === undefined) throw new EngineError(answer, res.status, res.requestId);
    return answer;
  }
}

// Answer is the answer to one request.
class Answer {
  #res;

  constructor(res) {
    this.#res = res;
    this.status = res.statusCode;
    this.ok = res.statusCode < 400;
    this.headers = res.headers;
    this.requestId = res.headers["x-request-id"] ?? "";
    this.body = res;
  }

  async bytes() {
    const parts = [];
    let size = 0;
    for await (const part of this.#res) {
      size += part.length;
      if (size > maxReply) throw new Error(`cannot read an answer of more than ${maxReply} bytes`);
      parts.push(part);
    }
    return Buffer.concat(parts);
  }

  async text() {
    return (await this.bytes()).toString("utf8");
  }

  // check throws what the answer reports, if it reports a failure.
  async check() {
    if (this.ok) return;
    const text = await this.text();
    let failure;
    try {
      failure = JSON.parse(text);
    } catch {
      // said below
    }
    if (failure?.error === undefined) {
      failure = { error: { class: "engine", kind: "bad_answer", message: `cannot understand an answer with status ${this.status}`, fix: "" } };
    }
    throw new EngineError(failure, this.status, this.requestId);
  }

  async json() {
    await this.check();
    return JSON.parse(await this.text());
  }

  // events yields the server-sent events. Half an event at the end is none.
  async *events() {
    const decoder = new TextDecoder();
    let text = "";
    for await (const part of this.#res) {
      text += decoder.decode(part, { stream: true });
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        const event = parseEvent(text.slice(0, end));
        text = text.slice(end + 2);
        if (event !== undefined) yield event;
      }
    }
  }
}

function parseEvent(block) {
  const event = { id: "", event: "", data: "" };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const name = line.slice(0, colon);
    if (name in event) event[name] = line.slice(colon + 1).replace(/^ /, "");
  }
  if (event.event === "") return undefined;
  return { ...event, data: JSON.parse(event.data) };
}

// chosen are the parameters of a filter of sandboxes.
function chosen({ owner, labels = {}, states = [] }) {
  return { owner, label: Object.entries(labels).map(([key, value]) => `${key}=${value}`), state: states };
}

async function* withBytes(records) {
  for await (const record of records) {
    yield { ...record, bytes: Buffer.from(record.data ?? "", "base64") };
  }
}

async function pump(stream, req) {
  for await (const part of stream) {
    if (!req.write(part)) await new Promise((resolve) => req.once("drain", resolve));
  }
  req.end();
}

function neverSent(err) {
  return err.code === "ENOENT" || err.code === "ECONNREFUSED";
}

// quote writes a value for a query. A path may be bytes, which need not be UTF-8.
function quote(value) {
  if (!(value instanceof Uint8Array)) return encodeURIComponent(String(value));
  return Array.from(value, (b) => `%${b.toString(16).padStart(2, "0")}`).join("");
}

function at(...parts) {
  return `/v1/${parts.map(encodeURIComponent).join("/")}`;
}

export function newRunId() {
  const letters = "abcdefghijklmnopqrstuvwxyz234567";
  return Array.from(randomBytes(16), (b) => letters[b % 32]).join("");
}
