/**
 * Client of the engine's service, over its Unix socket or over TLS.
 *
 * A failure that the service reports is an EngineError, with its kind. What may be asked
 * twice is asked again when the connection breaks, also across a restart of the service:
 * reads, deletions, starts (the client chooses the id), and streams, which go on behind the
 * last event that was seen, so that nothing is lost or comes twice.
 */
import type { IncomingHttpHeaders } from "node:http";
import type { Readable } from "node:stream";
import type * as wire from "./wire.js";

export * from "./wire.js";

export const DEFAULT_SOCKET: string;

export interface EngineOptions {
  /** Unix socket of the service; default DEFAULT_SOCKET. */
  socketPath?: string;
  /** Address instead of the socket: https://HOST:PORT. */
  url?: string;
  /** Token, with url. */
  token?: string;
  /** Options of node:tls, with url: ca, cert, key. */
  tls?: { ca?: string | Uint8Array; cert?: string | Uint8Array; key?: string | Uint8Array };
  /** How long something is tried again while the service cannot be reached; default 30000. */
  patienceMs?: number;
}

export interface CallOptions {
  signal?: AbortSignal;
}

/**
 * A file's path inside. Names of files are bytes: where one is no UTF-8, its entry in a list
 * has nameBytes, in base64, and its path is made of them.
 */
export type Path = string | Uint8Array;

/** What the service refused, or could not do. */
export class EngineError extends Error {
  /** request: change the request. engine: the operator's turn. */
  readonly class: string;
  /** Stable. */
  readonly kind: string;
  /** One imperative sentence; empty when no cure is known. */
  readonly fix: string;
  readonly status: number;
  /** Id of the request, as the service's log has it. */
  readonly requestId: string;
  readonly violations: wire.Violation[];
  /** Of a failure that concerns a sandbox. */
  readonly sandbox?: wire.SandboxFailure;
}

export interface FetchOptions extends CallOptions {
  method?: string;
  query?: Record<string, string | number | boolean | undefined | Uint8Array | string[]>;
  headers?: Record<string, string>;
  body?: string | Uint8Array | AsyncIterable<Uint8Array | string>;
}

export interface ServerEvent<T = unknown> {
  id: string;
  event: string;
  data: T;
}

/** The answer to one request. */
export interface Answer {
  readonly status: number;
  readonly ok: boolean;
  readonly headers: IncomingHttpHeaders;
  readonly requestId: string;
  readonly body: Readable;
  bytes(): Promise<Buffer>;
  text(): Promise<string>;
  /** Throws an EngineError if the answer reports a failure. */
  check(): Promise<void>;
  /** The answer's JSON, or an EngineError. */
  json<T = unknown>(): Promise<T>;
  events<T = unknown>(): AsyncGenerator<ServerEvent<T>>;
}

/** A record of output, with its bytes decoded. */
export type Piece = wire.OutputRecord & { bytes: Buffer };

/** An event of a program, with its bytes decoded. */
export type ExecPiece = wire.ExecEvent & { bytes: Buffer };

export interface SandboxFilter {
  owner?: string;
  /** All of them. */
  labels?: Record<string, string>;
  /** One of them. */
  states?: string[];
}

export interface RunFilter {
  state?: string;
  /** KEY=VALUE */
  label?: string;
  /** RunList.next of the page before. */
  after?: string;
  limit?: number;
}

/** Speaks to one service. */
export class Engine {
  constructor(options?: EngineOptions);
  /** Closes connections that nobody uses. */
  close(): void;
  /** Sends one request; a status of 400 or more is an answer like any other. */
  fetch(path: string, options?: FetchOptions): Promise<Answer>;

  /** Starts a run, or joins the one that has its id. */
  startRun(request: wire.RunRequest, options?: CallOptions): Promise<wire.Run>;
  run(id: string, options?: CallOptions): Promise<wire.Run>;
  runs(filter?: RunFilter, options?: CallOptions): Promise<wire.RunList>;
  /** Resolves once the run has ended. */
  waitRun(id: string, options?: CallOptions): Promise<wire.Run>;
  killRun(id: string, options?: CallOptions): Promise<wire.Run>;
  /** Deletes what is on record; one that is not there any more is no error. */
  deleteRun(id: string, options?: CallOptions): Promise<void>;
  runOutput(id: string, offset?: number, options?: CallOptions): Promise<wire.Output>;
  /** Yields what a run writes until its end, across restarts of the service. */
  followRun(id: string, offset?: number, options?: CallOptions): AsyncGenerator<Piece>;

  /** Creates a sandbox that stays, or adopts the one that its owner has under this name. */
  createSandbox(request: wire.SandboxRequest, options?: CallOptions): Promise<wire.Sandbox>;
  /** By its name or id. */
  sandbox(id: string, options?: CallOptions): Promise<wire.Sandbox>;
  sandboxes(filter?: SandboxFilter, options?: CallOptions): Promise<wire.SandboxList>;
  /** Tears one down; one that is gone is a success. */
  removeSandbox(id: string, options?: CallOptions): Promise<void>;
  removeSandboxes(filter: SandboxFilter, options?: CallOptions): Promise<wire.Removed>;
  liveness(id: string, options?: CallOptions): Promise<wire.Liveness>;
  renewSandbox(id: string, ttlSeconds?: number, options?: CallOptions): Promise<wire.Renewed>;
  pauseSandbox(id: string, options?: CallOptions): Promise<wire.Sandbox>;
  resumeSandbox(id: string, options?: CallOptions): Promise<wire.Sandbox>;
  sandboxStats(id: string, options?: CallOptions): Promise<wire.Stats>;
  estimate(inputs: wire.InputFile[], options?: CallOptions): Promise<wire.Estimate>;

  /** Starts a program, or joins the one that has its id; resolves once it runs. */
  startExec(sandbox: string, request: wire.ExecRequest, options?: CallOptions): Promise<wire.Exec>;
  execs(sandbox: string, options?: CallOptions): Promise<wire.ExecList>;
  exec(sandbox: string, id: string, options?: CallOptions): Promise<wire.Exec>;
  waitExec(sandbox: string, id: string, options?: CallOptions): Promise<wire.Exec>;
  /** Yields what a program writes and its exit, across restarts of the service. */
  followExec(sandbox: string, id: string, cursor?: string, options?: CallOptions): AsyncGenerator<ExecPiece>;
  /** Writes to its stdin as it comes, and ends it with close. It is sent once. */
  writeStdin(sandbox: string, id: string, body: FetchOptions["body"], options?: CallOptions & { close?: boolean }): Promise<wire.StdinReply>;
  signalExec(sandbox: string, id: string, signalName: string | number, options?: CallOptions): Promise<wire.Exec>;
  resizeExec(sandbox: string, id: string, size: wire.WindowSize, options?: CallOptions): Promise<wire.Exec>;

  readFile(sandbox: string, path: Path, options?: CallOptions & { offset?: number; limit?: number }): Promise<Answer>;
  /** The file appears complete, in place of what was there. */
  writeFile(sandbox: string, path: Path, body: FetchOptions["body"], options?: CallOptions & { mode?: number; parents?: boolean; exclusive?: boolean }): Promise<wire.FileInfo>;
  statFile(sandbox: string, path: Path, options?: CallOptions & { follow?: boolean }): Promise<wire.FileInfo>;
  listFiles(sandbox: string, path: Path, options?: CallOptions): AsyncGenerator<wire.FileInfo>;
  mkdir(sandbox: string, request: wire.MkdirRequest, options?: CallOptions): Promise<void>;
  moveFile(sandbox: string, request: wire.MoveRequest, options?: CallOptions): Promise<void>;
  removeFile(sandbox: string, path: Path, options?: CallOptions & { recursive?: boolean }): Promise<void>;
  watchFiles(sandbox: string, path: Path, options?: CallOptions & { recursive?: boolean }): AsyncGenerator<wire.FileEvent>;
  /** A tar archive. */
  exportFiles(sandbox: string, path: Path, options?: CallOptions): Promise<Answer>;
  importFiles(sandbox: string, path: Path, body: FetchOptions["body"], options?: CallOptions): Promise<wire.Archived>;

  capabilities(project?: string, options?: CallOptions): Promise<wire.CapabilityList>;
  /** Does one thing of what may be asked for. It is sent once. */
  call(project: string, name: string, call?: wire.Call, options?: CallOptions & { onProgress?: (line: string) => void }): Promise<wire.Reply>;

  images(options?: CallOptions): Promise<wire.ImageList>;
  image(name: string, options?: CallOptions): Promise<wire.Image>;
  draining(options?: CallOptions): Promise<wire.Drain>;
  setDraining(draining: boolean, options?: CallOptions): Promise<wire.Drain>;
  collect(request?: wire.GCRequest, options?: CallOptions): Promise<wire.GCReport>;
  version(options?: CallOptions): Promise<wire.VersionInfo>;
  /** What is not well is in the answer, not an error. */
  health(options?: CallOptions): Promise<wire.Health>;
  ready(options?: CallOptions): Promise<wire.Health>;
}

/** A random id of a run. */
export function newRunId(): string;
