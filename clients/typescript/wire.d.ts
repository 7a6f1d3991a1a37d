// Values of the API. Made from its description: go test ./cmd/engine-runner/api -run TypeScript -update

export interface Allowed {
  count: number;
  host: string;
  port: number;
  proto: string;
  rule: string;
  rxBytes: number;
  txBytes: number;
}

export interface Call {
  /** for what is no read; see engine approve */
  approval?: Envelope | null;
  /** do without an approval, where the config is in development mode */
  approveLocally?: boolean;
  /** as the capability's schema says; default {} */
  args?: unknown;
  /** of the project, where it has several */
  environment?: string;
}

export interface Caller {
  /** the most that they may do: read, run or admin */
  class: string;
  /** uid 1000, token ci, or certificate panel */
  name: string;
  /** whose objects they are confined to; empty: nobody's in particular */
  tenant: string;
}

export interface Capability {
  description: string;
  /** read, write or unknown */
  hazard: string;
  /** connector, action or workload */
  kind: string;
  name: string;
  /** JSON Schema of the arguments */
  params: unknown;
  project: string;
}

export interface CapabilityList {
  capabilities: Capability[];
  problems: Problem[];
}

export interface Check {
  fix: string;
  found: string;
  /** of the failure; empty when all is well */
  kind: string;
  /** start, gc, admission, drain */
  name: string;
  ok: boolean;
}

export interface Denied {
  count: number;
  host: string;
  port: number;
  proto: string;
  rule: string;
}

export interface Drain {
  draining: boolean;
  /** runs that have not ended */
  live: number;
}

export interface DrainRequest {
  /** nothing new starts; what is there goes on. Outlives a restart of the service */
  draining: boolean;
}

export interface Envelope {
  keyId: string;
  /** base64 */
  payload: string;
  /** base64 */
  signature: string;
}

export interface Error {
  /** request: change the request. engine: the operator's turn */
  class: string;
  /** one imperative sentence; empty when no cure is known */
  fix: string;
  /** stable; OPERATIONS has a row for each */
  kind: string;
  /** for people */
  message: string;
}

export interface Failure {
  error: Error;
  /** everything that is wrong with the arguments of a capability */
  violations?: Violation[];
}

export interface File {
  /** base64 */
  data: string;
  /** permissions as a number; default 0644 */
  mode?: number;
  /** below /workload */
  path: string;
}

export interface FileChange {
  kind: string;
  path: string;
  size: number;
}

export interface FileDigest {
  mode: number;
  path: string;
  sha256: string;
  size: number;
}

export interface GCAction {
  /** end and remove, remove, or stuck */
  action: string;
  /** of the run; empty for what belongs to none */
  id: string;
  object: string;
  why: string;
}

export interface GCReport {
  actions: GCAction[];
}

export interface GCRequest {
  /** only say what would be done */
  dryRun?: boolean;
}

export interface Health {
  checks: Check[];
  ok: boolean;
}

export interface Image {
  config: ImageConfig;
  created: string;
  digest: string;
  /** what it was made of */
  kind: string;
  layers: Layer[];
  name: string;
  platform: string;
  /** of which other images have too; 0 except in a list */
  shared: number;
  /** bytes of its layers on disk */
  size: number;
  source: string;
}

export interface ImageConfig {
  cmd: string[];
  entrypoint: string[];
  env: string[];
  user: string;
  workdir: string;
}

export interface ImageInfo {
  digest: string | null;
  ref: string;
}

export interface ImageList {
  images: Image[];
}

export interface Layer {
  diffId: string;
  digest: string;
  size: number;
}

export interface LayerInfo {
  digest: string;
  name: string;
}

export interface Limits {
  /** of one core; default 1 */
  cpus?: number;
  /** MiB; default 512 */
  memoryMb?: number;
  /** kept of each stream; default 1000000 */
  outputKeptBytes?: number;
  /** of both streams, after which the run is ended; default none */
  outputMaxBytes?: number;
  /** processes and threads; default 256 */
  pids?: number;
  /** of wall clock; default 120 */
  timeoutSeconds?: number;
  /** MiB of /tmp; default 64, or a quarter of the memory */
  tmpMb?: number;
  /** MiB of /workload; default 256, or half of the memory */
  workspaceMb?: number;
}

export interface NetworkInfo {
  allowed: Allowed[];
  denied: Denied[];
  mode: string;
}

export interface Output {
  /** nothing will follow */
  done: boolean;
  /** offset of what follows */
  next: number;
  records: OutputRecord[];
}

export interface OutputDone {
  /** offset of the end */
  next: number;
}

export interface OutputRecord {
  /** base64, of data and tail */
  data?: string;
  /** bytes */
  dropped?: number;
  /** data; tail: the last of what was dropped; dropped: bytes that are missing here; end */
  kind: string;
  /** offset of what follows */
  next: number;
  /** over both streams, from 1 */
  seq?: number;
  /** of end */
  stderr?: OutputSum | null;
  /** of end */
  stdout?: OutputSum | null;
  /** stdout or stderr */
  stream?: string;
  time: string;
}

export interface OutputSum {
  kept: number;
  written: number;
}

export interface Phase {
  ms: number;
  name: string;
  startMs: number;
}

export interface Problem {
  message: string;
  name: string;
  project: string;
}

export interface Progress {
  line: string;
}

export interface Reply {
  /** of the call, in the audit log */
  id: string;
  /** the capability's own */
  output: unknown;
  /** signed, about what ran; null: nothing ran */
  receipt: Envelope | null;
}

export interface Result {
  actuals: Usage;
  changes: FileChange[];
  digest: string | null;
  durationMs: number;
  error: Error | null;
  exitCode: number | null;
  id: string;
  image: ImageInfo;
  layers: LayerInfo[];
  limits: ResultLimits;
  network: NetworkInfo;
  /** the program exited with status 0 */
  ok: boolean;
  oomKilled: boolean;
  /** why it stopped; null: it never started, error says why */
  reason: string | null;
  runtime: RuntimeInfo;
  signal: string | null;
  stderr: string;
  stderrBytes: number;
  stderrTruncated: boolean;
  /** what was kept, invalid UTF-8 as U+FFFD */
  stdout: string;
  stdoutBytes: number;
  stdoutTruncated: boolean;
  timedOut: boolean;
  timing: Timing;
  unenforced: string[];
}

export interface ResultLimits {
  cpus: number;
  memoryMb: number;
  pids: number;
  timeoutSeconds: number;
}

export interface Run {
  /** a process watches over it */
  alive: boolean;
  created: string;
  id: string;
  /** records that cannot be read */
  problems: string[];
  request: RunSpec;
  /** null until it has ended. A list has it without output */
  result: Result | null;
  /** of the program; null: not yet */
  started: string | null;
  /** creating, created, running, stopped, removed */
  state: string;
}

export interface RunID {
  id: string;
}

export interface RunList {
  /** give it as after for the next page; empty: this was the last */
  next: string;
  runs: Run[];
}

export interface RunRequest {
  /** argv; empty: the image's own */
  command?: string[];
  /** what it may reach: HOST[:PORT], CIDR:PORT[/udp], internet; nothing by default */
  egress?: string[];
  env?: Record<string, string>;
  /** there when the program starts, below /workload */
  files?: File[];
  /** likewise */
  gid?: number;
  /** 16 lower-case letters and digits; chosen if it is not given */
  id?: string;
  /** name of an image in the store; exactly one of image and rootfs */
  image?: string;
  labels?: Record<string, string>;
  limits?: Limits;
  /** absolute path of a directory on the host; for admin alone */
  rootfs?: string;
  /** auto (default), direct, embedded, runc, crun or runsc */
  runtime?: string;
  /** values that the program sees and no record has */
  secrets?: Record<string, string>;
  /** inside, 1 to 65535; 0: the image's if it is a number, or 65532 */
  uid?: number;
  /** absolute path inside; empty: the image's, or /workload */
  workdir?: string;
}

export interface RunSpec {
  command: string[];
  egress: string[];
  /** NAME=VALUE */
  env: string[];
  files: FileDigest[];
  gid: number;
  image: string;
  labels: Record<string, string>;
  limits: Limits;
  rootfs: string;
  runtime: string;
  secretNames: string[];
  uid: number;
  workdir: string;
}

export interface RuntimeInfo {
  name: string;
  sha256: string | null;
  version: string;
}

export interface Timing {
  firstOutputMs: number | null;
  phases: Phase[];
  sandboxMs: number | null;
  totalMs: number;
}

export interface Usage {
  busyCpuSecs: number | null;
  ioReadBytes: number | null;
  ioWriteBytes: number | null;
  oomKills: number | null;
  peakMemBytes: number | null;
  peakPids: number | null;
  pidsRefused: number | null;
  rxBytes: number | null;
  systemCpuSecs: number | null;
  throttledSecs: number | null;
  txBytes: number | null;
  userCpuSecs: number | null;
}

export interface VersionInfo {
  /** of the API */
  api: string;
  caller: Caller;
  /** of the engine */
  version: string;
}

export interface Violation {
  message: string;
  /** RFC 6901; empty is the whole value */
  pointer: string;
}
