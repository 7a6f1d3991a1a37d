// Goes through the API by the TypeScript client. The test's own program kills the service
// whenever this one says "kill".
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { pathToFileURL } from "node:url";

const [client, socketPath] = process.argv.slice(2);
const { Engine, EngineError } = await import(pathToFileURL(client));
const engine = new Engine({ socketPath });

const version = await engine.version();
assert.equal(version.api, "v1");
assert.equal(version.caller.class, "admin");
assert.ok((await engine.health()).ok);
assert.ok((await engine.ready()).ok);

await assert.rejects(engine.startRun({ image: "box", comand: ["x"] }), (err) => {
  assert.ok(err instanceof EngineError);
  assert.deepEqual([err.kind, err.status, err.class], ["bad_body", 400, "request"]);
  assert.match(err.fix, /did you mean command/);
  return true;
});
await assert.rejects(engine.run("aaaaaaaaaaaaaaaa"), { kind: "not_found" });

const script = `i=0; while [ $i -lt 2000 ]; do echo "line $i of the stream"; i=$((i+1)); [ $((i % 40)) = 0 ] && sleep 0.05; done; echo end >&2`;
let run = await engine.startRun({ image: "box", runtime: "embedded", command: ["sh", "-c", script], labels: { from: "typescript" } });
const want = createHash("sha256");
for (let i = 0; i < 2000; i++) want.update(`line ${i} of the stream\n`);
const got = createHash("sha256");
let kills = 0;
let bytes = 0;
for await (const piece of engine.followRun(run.id)) {
  if (piece.stream !== "stdout" || piece.kind !== "data") continue;
  got.update(piece.bytes);
  bytes += piece.bytes.length;
  if (kills < 2 && bytes > (kills + 1) * 10_000) {
    kills++;
    console.log("kill");
  }
}
assert.equal(kills, 2);
assert.equal(got.digest("hex"), want.digest("hex"));
run = await engine.waitRun(run.id);
assert.equal(run.result.exitCode, 0);
assert.equal(run.result.stderr, "end\n");
assert.equal((await engine.runs({ label: "from=typescript" })).runs.length, 1);
assert.ok((await engine.runOutput(run.id)).done);
await engine.deleteRun(run.id);
await engine.deleteRun(run.id);

run = await engine.startRun({ image: "box", runtime: "embedded", command: ["sleep", "100"] });
assert.equal((await engine.killRun(run.id)).result.reason, "cancelled");

const box = { name: "ts", owner: "wf:1", image: "box", runtime: "embedded", cpus: 1, memoryMb: 256, labels: { from: "typescript" } };
assert.equal((await engine.createSandbox(box)).state, "ready");
await assert.rejects(engine.createSandbox({ ...box, owner: "wf:2" }), (err) => err.kind === "name_conflict" && err.sandbox.owner === "wf:1");
const cat = await engine.startExec("ts", { command: ["sh", "-c", "cat; exit 4"], stdin: true });
assert.equal((await engine.writeStdin("ts", cat.id, (async function* () { yield "one\n"; yield "two\n"; })(), { close: true })).bytes, 8);
let written = "";
for await (const piece of engine.followExec("ts", cat.id)) {
  written += piece.bytes.toString();
  if (piece.kind === "exit") assert.equal(piece.result.exitCode, 4);
}
assert.equal(written, "one\ntwo\n");
const sleeper = await engine.startExec("ts", { command: ["sleep", "100"] });
await engine.signalExec("ts", sleeper.id, "SIGTERM");
assert.equal((await engine.waitExec("ts", sleeper.id)).result.signal, "SIGTERM");
assert.equal((await engine.writeFile("ts", "/workload/a/b", "content", { parents: true, mode: 0o600 })).mode, 0o600);
assert.equal(await (await engine.readFile("ts", "/workload/a/b")).text(), "content");
const archive = await (await engine.exportFiles("ts", "/workload")).bytes();
assert.ok((await engine.importFiles("ts", "/tmp/copy", archive)).entries >= 2);
assert.equal((await engine.statFile("ts", "/tmp/copy/a/b")).size, 7);
for await (const entry of engine.listFiles("ts", "/workload")) assert.equal(entry.name, "a");
await assert.rejects(engine.readFile("ts", "/workload/none"), { kind: "no_file" });
await engine.removeFile("ts", "/workload/a", { recursive: true });
const odd = Buffer.concat([Buffer.from("/workload/caf"), Buffer.from([0xe9])]); // no UTF-8
await engine.writeFile("ts", odd, "odd");
for await (const entry of engine.listFiles("ts", "/workload")) {
  assert.equal(entry.name, "caf\ufffd");
  const listed = Buffer.concat([Buffer.from("/workload/"), Buffer.from(entry.nameBytes, "base64")]);
  assert.equal(await (await engine.readFile("ts", listed)).text(), "odd");
}
await engine.moveFile("ts", { fromBytes: odd.toString("base64"), to: "/workload/caf\u00e9" });
await engine.removeFile("ts", "/workload/caf\u00e9");
assert.equal((await engine.sandboxes({ labels: { from: "typescript" } })).sandboxes.length, 1);
assert.equal((await engine.estimate([{ name: "a.csv", size: 1e9 }])).memoryGb, 10);
assert.ok((await engine.liveness("ts")).alive);
assert.equal((await engine.removeSandboxes({ owner: "wf:1" })).count, 1);
await engine.removeSandbox("ts");

const job = { approveLocally: true, args: { files: [{ path: "main.sh", contents: "echo on the way >&2; echo there" }], entrypoint: "main.sh" } };
const lines = [];
const reply = await engine.call("shop", "workload.execute", job, { onProgress: (line) => lines.push(line) });
assert.equal(reply.output.stdout, "there\n");
assert.ok(lines.includes("on the way"), lines.join("\n"));
assert.ok(reply.receipt.signature.length > 0);
await assert.rejects(engine.call("shop", "workload.execute", { args: {} }, { onProgress() {} }), (err) => err.kind === "bad_arguments" && err.violations.length > 0);
assert.ok((await engine.capabilities("shop")).capabilities.some((c) => c.name === "workload.execute"));
assert.equal((await engine.image("box")).name, (await engine.images()).images[0].name);

assert.equal((await engine.setDraining(true)).draining, true);
assert.equal((await engine.ready()).ok, false);
await assert.rejects(engine.startRun({ image: "box", command: ["true"] }), { kind: "draining" });
assert.equal((await engine.setDraining(false)).draining, false);
assert.ok(Array.isArray((await engine.collect({ dryRun: true })).actions));

engine.close();
console.log("done");
