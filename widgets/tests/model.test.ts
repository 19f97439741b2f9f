// The model in node, without a page: pyramid, rows, the receiver's repair, search, the way of a chunk.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ticks, time } from "../src/draw/format";
import { Faults, sinceCause } from "../src/model/faults";
import { Ops } from "../src/model/ops";
import { MAX_BUCKETS, Pyramid } from "../src/model/pyramid";
import { shades } from "../src/model/rates";
import { Receiver } from "../src/model/receive";
import { Row } from "../src/model/row";
import { Kind, SpanKind, Track } from "../src/model/schema";
import { Store } from "../src/model/store";
import { layoutFlags } from "../src/views/marks_paint";
import { findHit, parseSearch } from "../src/views/search";

(globalThis as any).requestAnimationFrame = (f: () => void) => setTimeout(f, 0);

function random(seed: number): () => number {
  let state = seed;
  return () => ((state = (state * 1103515245 + 12345) & 0x7fffffff), state / 0x7fffffff);
}

test("the pyramid holds all busy time at every zoom", () => {
  const next = random(7);
  const pyramid = new Pyramid();
  let [t, total] = [0, 0];
  for (let i = 0; i < 20_000; i++) {
    t += Math.floor(next() * 900);
    const length = 1 + Math.floor(next() * 500);
    pyramid.add(t, t + length, i % 5);
    t += length;
    total += length;
  }
  assert.ok(t / pyramid.bucketNs <= MAX_BUCKETS);
  for (const width of [64, 700, 4000]) {
    const ns = Math.ceil((t * 1.01) / width);
    if (ns < pyramid.bucketNs) continue;
    const [busy, cat, best] = [new Float32Array(width), new Uint8Array(width), new Float32Array(width)];
    pyramid.scan(0, ns, width, busy, cat, best, new Float32Array(16).fill(1));
    const sum = busy.reduce((a, b) => a + b, 0) * ns;
    // A pixel takes whole buckets, so a share of its edge may lie in the neighbour; all together agree closely.
    assert.ok(Math.abs(sum - total) < total * 0.03, `${width}: ${sum} and ${total}`);
    assert.ok(busy.every((v) => v >= 0 && v < 1.6));
  }
});

test("a pyramid that is appended to equals one that is built at once", () => {
  const [a, b] = [new Pyramid(), new Pyramid()];
  const spans = Array.from({ length: 5000 }, (_, i) => [i * 100, i * 100 + 60, i % 3]);
  const scan = (p: Pyramid) => {
    const [busy, cat, best] = [new Float32Array(50), new Uint8Array(50), new Float32Array(50)];
    p.scan(0, 10_000, 50, busy, cat, best, new Float32Array(16).fill(1));
    return [...busy];
  };
  spans.forEach(([begin, end, cat], i) => {
    a.add(begin, end, cat);
    if (i % 500 === 0) scan(a);
  });
  spans.forEach(([begin, end, cat]) => b.add(begin, end, cat));
  assert.deepEqual(scan(a), scan(b));
});

function rowOf(spans: [number, number, number][]): Row {
  const row = new Row(0);
  for (const [begin, end, bytes] of spans) {
    const at = row.place(begin, end, false);
    assert.ok(at >= 0);
    row.insert(at, begin, end);
    row.nbytes[at] = bytes;
    row.commit(at);
  }
  return row;
}

test("a row keeps order whatever order spans come in, and refuses overlap", () => {
  const row = rowOf([[100, 200, 0], [0, 50, 0], [60, 90, 0], [300, 400, 0]]);
  assert.deepEqual([...row.begin.subarray(0, row.n)], [0, 60, 100, 300]);
  assert.equal(row.place(40, 70, false), -1);
  assert.equal(row.place(210, 290, false), 3);
  assert.equal(row.at(70, 0), 1);
  assert.equal(row.at(250, 0), -1);
  assert.equal(row.at(250, 60), 2);
});

test("bytes are spread evenly over their span", () => {
  const row = rowOf([[0, 100, 1000], [200, 300, 500]]);
  assert.equal(row.bytesBefore(50), 500);
  assert.equal(row.bytesBefore(150), 1000);
  assert.equal(row.bytesBefore(250), 1250);
  assert.equal(row.bytesBefore(1e9), 1500);
  assert.equal(row.bytesBefore(-1), 0);
});

function batch(seq: number, first = 0): [any, DataView[]] {
  const wire = new DataView(new ArrayBuffer(16));
  wire.setUint32(0, seq * 100, true);
  wire.setUint32(4, 50, true);
  wire.setInt32(8, seq, true);
  const lanes = seq === first ? { from: 0, node: [0], rank: [0], track: [Track.channel], index: [0] } : undefined;
  return [{ seq, first, count: 1, origin_ns: 0, tick_ns: 1, lanes }, [wire, new DataView(new ArrayBuffer(16))]];
}

test("a gap is asked for again, and every batch counts once", () => {
  const store = new Store("a", {}, true);
  const sent: any[] = [];
  const receiver = new Receiver(store, (content) => sent.push(content));
  receiver.take(...batch(0));
  receiver.take(...batch(1));
  receiver.take(...batch(3));
  assert.deepEqual(sent, [{ type: "ask", source: "a", from: 2 }]);
  receiver.take(...batch(4));
  assert.equal(sent.length, 1, "not again within a second");
  for (const seq of [2, 3, 3, 1, 4]) receiver.take(...batch(seq));
  assert.equal(store.spans, 5);
  assert.equal(receiver.next, 5);
  receiver.head(7);
  assert.deepEqual(sent.at(-1), { type: "ask", source: "a", from: 5 });
});

test("what the kernel no longer keeps is skipped and counted", () => {
  const store = new Store("a", {}, true);
  const receiver = new Receiver(store, () => {});
  receiver.take(...batch(10, 10));
  assert.equal(receiver.skipped, 10);
  assert.equal(store.spans, 1);
});

test("overlapping spans of a lane get rows of their own", () => {
  const store = new Store("a", {}, false);
  const lanes = { node: [0], rank: [0], track: [Track.channel], index: [0] };
  const wire = new DataView(new ArrayBuffer(16 * 8));
  for (let i = 0; i < 8; i++) {
    wire.setUint32(i * 16, i, true);
    wire.setUint32(i * 16 + 4, 1000, true);
  }
  store.ingest({ seq: 0, count: 8, origin_ns: 0, tick_ns: 1, lanes }, wire, new DataView(new ArrayBuffer(16 * 8)));
  assert.deepEqual(store.lanes[0].rows.map((row) => row.n), [1, 1, 1, 1, 1, 3]);
  assert.ok(store.lanes[0].rows[5].overlaps);
});

test("a trickle is drawn where it was, and not where nothing moved after it", () => {
  assert.deepEqual(shades([0, 1, 1, 0.001, 0, 0], 1), [
    { from: 1, to: 3, shade: 1 },
    { from: 3, to: 4, shade: 0 },
  ]);
  assert.deepEqual(shades([0, 0], 1), []);
  assert.deepEqual(shades([9, 0.5], 1), [{ from: 0, to: 1, shade: 1 }, { from: 1, to: 2, shade: 0.5 }]);
});

test("search understands kinds, numbers and words, and nothing else", () => {
  const store = new Store("a", {}, false);
  for (const [seq] of [[0], [1], [2]]) store.ingest(batch(seq)[0], ...(batch(seq)[1] as [DataView, DataView]));
  const hits = (text: string) => findHit(store, parseSearch(text)!, -1, 1).count;
  assert.equal(hits("put"), 3);
  assert.equal(hits("op:1"), 1);
  assert.equal(hits("rank 0 channel:0"), 3);
  assert.equal(hits("2"), 1);
  assert.equal(hits("failed"), 0);
  assert.equal(parseSearch("no such thing"), null);
  assert.equal(parseSearch("  "), null);
});

test("a chunk is followed through copies, over reused memory, in causal order", () => {
  // rank 1 forwards what it gets from rank 0; its scratch is written again later by rank 2.
  const rows: Record<string, number>[] = [
    { rank: 1, kind: Kind.wait, peer: 0, sig_channel: 0, value: 1, step: 0 },
    { rank: 1, kind: Kind.put, peer: 2, sig_channel: 0, step: 0, dst_buf: 1, sources: 1, src_rank: 1, src_buf: 2 },
    { rank: 0, kind: Kind.put, peer: 1, sig_channel: 0, step: 0, dst_buf: 2, sources: 1, src_rank: 0, src_buf: 0 },
    { rank: 2, kind: Kind.wait, peer: 1, sig_channel: 0, value: 1, step: 1 },
    { rank: 2, kind: Kind.put, peer: 1, sig_channel: 0, step: 1, dst_buf: 2, sources: 1, src_rank: 2, src_buf: 0 },
    { rank: 1, kind: Kind.wait, peer: 2, sig_channel: 0, value: 1, step: 1 },
    { rank: 1, kind: Kind.copy, peer: -1, sig_channel: -1, step: 1, dst_buf: 1, sources: 1, src_rank: 1, src_buf: 2 },
  ];
  const column = (f: (row: Record<string, number>) => number) => Int32Array.from(rows, f).buffer;
  const begins: number[] = [];
  rows.reduce((n, row) => (begins.push(n), n + (row.sources ?? 0)), 0);
  const get = (name: string) => column((row) => row[name] ?? 0);
  const names = ["rank", "channel", "step", "kind", "peer", "sig_channel", "value", "dst_buf", "dst_chunk", "arg"];
  const withSource = rows.filter((row) => row.sources);
  const source = (name: string) => Int32Array.from(withSource, (row) => row[name] ?? 0).buffer;
  const ops = new Ops({
    columns: { ...Object.fromEntries(names.map((name) => [name, get(name)])), n_chunks: column(() => 1), src_begin: Int32Array.from(begins).buffer, src_count: get("sources") },
    sources: { src_rank: source("src_rank"), src_buf: source("src_buf"), src_chunk: source("src_chunk") },
    op_id: column((row) => rows.indexOf(row)),
  });
  assert.deepEqual([...ops.path(2)].sort(), [1, 2], "not the copy of what came later");
  assert.deepEqual([...ops.path(6)].sort(), [4, 6]);
  assert.equal(ops.words(2), "put input[0] → rank 1 scratch[0] + signal");
});

test("axes have round steps in one unit", () => {
  assert.deepEqual(ticks(0, 10e6, 5).map((t) => t.label), ["0 ms", "2 ms", "4 ms", "6 ms", "8 ms", "10 ms"]);
  assert.equal(time(1234), "1.234 µs");
  assert.equal(SpanKind.put, 0);
});

const told = {
  version: 3,
  marks: [
    { at: "9007199254740999", look: "fault", icon: "⚡", word: "NIC down", where: "node 1 NIC 2", text: "", count: 1, cause: true, node: 1, nic: 2 },
    { at: "9007199254741999", look: "heal", icon: "▶", word: "resumed", where: "node 1 NIC 2", text: "", count: 4, cause: false, node: 1, nic: 2 },
  ],
  downs: [{ node: 1, nic: 2, word: "down", icon: "✕", dead: true, from: "9007199254740999", to: null, repaired: "9007199254741999" }],
  active: [{ number: 1, word: "NIC down", where: "node 1 NIC 2", python: "", fired: 1, undo: true, node: 1, nic: 2 }],
  nics: [{ node: 1, nic: 2, state: "down", icon: "✕" }, { node: 0, nic: 0, state: "down", icon: "✕" }],
  ranks: [{ rank: 3, state: "paused", icon: "‖" }],
};

test("marks of faults are placed to the nanosecond, also beyond what a double holds", () => {
  const faults = new Faults(true);
  faults.take(told);
  assert.deepEqual(faults.shown(), [], "without the time of the first span there is no place");
  faults.setOrigin("9007199254740990");
  assert.deepEqual(faults.shown().map((mark) => [mark.t, mark.word]), [[9, "NIC down"], [1009, "resumed"]]);
  const [down] = faults.of(1, 2);
  assert.deepEqual([down.from, down.to, down.repaired], [9, Infinity, 1009]);
  assert.equal(sinceCause(faults.marks, faults.marks[1]), 1000);
  assert.equal(sinceCause(faults.marks, faults.marks[0]), null);
  assert.equal(faults.summary(), "2 NICs down · 1 rank paused");
  assert.equal(faults.undoable({ node: 1, nic: 2 }).length, 1);
  assert.equal(faults.undoable({ node: 0, nic: 0 }).length, 0);
});

test("spans of faults and recovery are marks where nothing better is known, many of one moment being one", () => {
  const faults = new Faults(false);
  const lane = (nic: number) => ({ node: 1, rank: 4, track: Track.nic_tx, index: nic });
  faults.span(SpanKind.fault, 100, 100, lane(2));
  for (let k = 0; k < 5; k++) faults.span(SpanKind.recovery, 100, 7000 + k, lane(2));
  assert.deepEqual(faults.shown().map((mark) => [mark.t, mark.word, mark.count]), [[100, "fault", 1], [7000, "resumed", 5]]);
  faults.take({ ...told, version: 1 });
  faults.setOrigin("9007199254740990");
  assert.deepEqual(faults.shown().map((mark) => mark.word), ["NIC down", "resumed"]);
});

test("flags never stand on one another, and each mark is in one of them or keeps its line alone", () => {
  const next = random(11);
  const looks = ["fault", "lost", "verdict", "heal"] as const;
  for (let round = 0; round < 50; round++) {
    const marks = Array.from({ length: 1 + Math.floor(next() * 30) }, (_, i) => ({ ...(told.marks[0] as any), t: next() * 1000, look: looks[i % 4], word: `w${i}` }));
    const flags = layoutFlags(marks, (t) => t, 1000, 2, (text) => text.length * 6);
    for (const [i, a] of flags.entries()) {
      assert.ok(a.x >= 0 && a.x + a.w <= 1001.5, `${a.x} ${a.w}`);
      for (const b of flags.slice(i + 1)) assert.ok(a.row !== b.row || a.x + a.w <= b.x || b.x + b.w <= a.x, JSON.stringify([a, b]));
    }
    const named = flags.flatMap((flag) => flag.marks.map((mark) => mark.word));
    assert.equal(new Set(named).size, named.length);
  }
});
