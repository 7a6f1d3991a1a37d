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
}

export interface FetchOptions extends CallOptions {
  method?: string;
  query?: Record<string, string | number | boolean | undefined>;
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
