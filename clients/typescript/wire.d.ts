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

export interface Archived {
  bytes: number;
  entries: number;
  /** the first hundred */
  skipped: Skipped[];
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

export interface Callback {
  /** base64 of 16 bytes to 4 KiB: the key of the signatures */
  secret: string;
  url: string;
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
  /** it does not count for ok, but for degraded */
  minor?: boolean;
  /** start, gc, admission, link, drain */
  name: string;
  ok: boolean;
}

export interface Clamped {
  asked: number;
  granted: number;
  /** its key in limits */
  limit: string;
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

export interface Estimate {
  cpus: number;
  /** 10^9 bytes */
  memoryGb: number;
}

export interface EstimateRequest {
  inputs: InputFile[];
}

export interface Exec {
  command: string[];
  /** NAME=VALUE */
  env: string[];
  id: string;
  /** null while it runs */
  result: ExecResult | null;
  started: string;
  stdin: boolean;
  tty: WindowSize | null;
  workdir: string;
}

export interface ExecDone {
  next: string;
}

export interface ExecEvent {
  /** of what follows */
  cursor: string;
  /** base64 */
  data?: string;
  /** bytes */
  dropped?: number;
  /** data; tail: the last of what was dropped; dropped: bytes that are missing here; exit, the last one */
  kind: string;
  /** of exit; missing if nobody knows */
  result?: ExecResult | null;
  /** over both streams */
  seq?: number;
  /** stdout or stderr */
  stream?: string;
  time: string;
}

export interface ExecEvents {
  /** nothing will follow */
  done: boolean;
  events: ExecEvent[];
  /** cursor of what follows */
  next: string;
}

export interface ExecList {
  execs: Exec[];
}

export interface ExecRequest {
  command: string[];
  /** added to the sandbox's */
  env?: Record<string, string>;
  /** letters, digits and ._:-, at most 128; chosen if it is not given */
  id?: string;
  /** of each stream; default 1000000 */
  outputKeptBytes?: number;
  /** it will be written to; otherwise it reads /dev/null */
  stdin?: boolean;
  /** from its start; default the sandbox's end */
  timeoutSeconds?: number;
  /** a terminal of this size; its output is all stdout then */
  tty?: WindowSize | null;
  workdir?: string;
}

export interface ExecResult {
  /** of the program and what it waited for; null: not known */
  cpuSecs: number | null;
  durationMs: number;
  error: Error | null;
  /** null unless reason is exited */
  exitCode: number | null;
  /** as of a run; empty: it was never started, error says why */
  reason: string;
  /** SIGKILL; empty unless reason is signal */
  signal: string;
  stderrBytes: number;
  stderrTruncated: boolean;
  /** as written, kept or not; likewise of stderr */
  stdoutBytes: number;
  /** more was written than is on record; likewise of stderr */
  stdoutTruncated: boolean;
  timedOut: boolean;
}

export interface Failure {
  error: Error;
  /** of a failure that concerns a sandbox */
  sandbox?: SandboxFailure | null;
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

export interface FileEvent {
  /** the same for the two halves of one move */
  cookie: number;
  directory: boolean;
  path: string;
  /** the path, if it is no UTF-8 */
  pathBytes?: string;
  /** created, modified, written, changed, removed, moved_from, moved_to, or overflow: look for yourself */
  type: string;
}

export interface FileInfo {
  gid: number;
  modTime: string;
  /** permissions as a number */
  mode: number;
  name: string;
  /** the name, if it is no UTF-8: in name U+FFFD stands for each byte that is none */
  nameBytes?: string;
  size: number;
  /** file, directory, symlink or other */
  type: string;
  /** inside */
  uid: number;
}

export interface FileList {
  entries: FileInfo[];
  /** give it as after for the next page; empty: this was the last */
  next: string;
}

export interface FilePath {
  path: string;
  /** the path, if it is no UTF-8 */
  pathBytes?: string;
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
  /** a minor check fails: runs start, and something else does not work */
  degraded: boolean;
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

export interface InputFile {
  name: string;
  /** bytes */
  size: number;
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

export interface Liveness {
  alive: boolean;
  oomKilled: boolean;
}

export interface MkdirRequest {
  /** default 0755 */
  mode?: number;
  /** make those above it too; one that is there is fine */
  parents?: boolean;
  /** absolute, inside */
  path?: string;
  /** instead of path, for one that is no UTF-8 */
  pathBytes?: string;
}

export interface Mounts {
  /** the library store at /mnt/libs, where it is whole */
  library?: boolean;
  /** there is no writable step */
  readOnly?: boolean;
  /** the reference store at /mnt/refs */
  references?: boolean;
  /** a tree, at /RESOURCE, read-only */
  resource?: string;
  /** its own directory inside that, to be written: ids, joined by / */
  step?: string;
}

export interface MoveRequest {
  from?: string;
  /** instead of from, for one that is no UTF-8 */
  fromBytes?: string;
  replace?: boolean;
  to?: string;
  /** likewise */
  toBytes?: string;
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

export interface Removed {
  /** what was there; none is a success too */
  count: number;
}

export interface RenewRequest {
  /** default that which it was created with */
  ttlSeconds?: number;
}

export interface Renewed {
  deadline: string;
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
  /** the first 4 MiB of what was kept, invalid UTF-8 as U+FFFD */
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

export interface Sandbox {
  alive: boolean;
  /** what was asked for above the ceilings */
  clamped: Clamped[];
  createdAt: string;
  /** when its time to live is over; null until it is ready */
  deadline: string | null;
  /** null: nothing was estimated */
  estimate: Estimate | null;
  /** of its run */
  id: string;
  image: string;
  labels: Record<string, string>;
  limits: SandboxLimits;
  name: string;
  oomKilled: boolean;
  owner: string;
  /** null until it has ended */
  result: Result | null;
  rootfs: string;
  runtime: string;
  /** queued, starting, ready, paused or ended */
  state: string;
}

export interface SandboxFailure {
  id: string;
  /** create, teardown or isAlive */
  operation: string;
  owner: string;
  /** its name */
  sandbox: string;
  /** of the sandbox, or the kind of the cause; empty where nothing is known */
  status: string;
}

export interface SandboxLimits {
  cpus: number;
  /** 0: never */
  idleSeconds: number;
  memoryMb: number;
  pids: number;
  ttlSeconds: number;
}

export interface SandboxList {
  sandboxes: Sandbox[];
}

export interface SandboxRequest {
  /** where its events are sent to */
  callback?: Callback | null;
  /** small, large, heavy, or what the config names */
  class?: string;
  /** cpus and memoryMb must be given, or follow from class or inputs */
  cpus?: number;
  /** as of a run */
  egress?: string[];
  /** of every program in it */
  env?: Record<string, string>;
  /** ends it after so long without anything to do; negative: never */
  idleSeconds?: number;
  /** of the store; default the config's */
  image?: string;
  /** what it will work on, for the estimate of its size */
  inputs?: InputFile[];
  labels?: Record<string, string>;
  /** MiB */
  memoryMb?: number;
  /** which of the host's directories it sees */
  mounts?: Mounts | null;
  /** unique on the host, or in the caller's tenant: letters, digits and ._:-, at most 128 */
  name: string;
  /** who may adopt it; default the caller's tenant, or name */
  owner?: string;
  /** processes and threads; default 512 */
  pids?: number;
  /** absolute path of a directory on the host; for admin alone */
  rootfs?: string;
  runtime?: string;
  /** values that its programs see and no record has */
  secrets?: Record<string, string>;
  /** time to live from readiness */
  ttlSeconds?: number;
}

export interface SignalRequest {
  /** SIGTERM, TERM, or a number */
  signal: string;
}

export interface Skipped {
  path: string;
  /** the path, if it is no UTF-8 */
  pathBytes?: string;
  why: string;
}

export interface Stats {
  /** now */
  memoryBytes: number | null;
  paused: boolean;
  /** processes and threads, now */
  pids: number | null;
  time: string;
  usage: Usage;
}

export interface StdinReply {
  bytes: number;
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

export interface WindowSize {
  columns: number;
  rows: number;
}
