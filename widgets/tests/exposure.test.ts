// What is exposed, in node: interval arithmetic and the partition against counting nanosecond by nanosecond, and the words.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Intervals, unionOf } from "../src/model/intervals";
import { effectiveCommTime, overlapOf, sentence } from "../src/model/exposure_words";
import { SpanKind, Track } from "../src/model/schema";
import { Store, laneLabel } from "../src/model/store";

(globalThis as any).requestAnimationFrame = (f: () => void) => setTimeout(f, 0);

function random(seed: number): () => number {
  let state = seed;
  return () => ((state = (state * 1103515245 + 12345) & 0x7fffffff), state / 0x7fffffff);
}

const T = 400;

function some(next: () => number): Intervals {
  const covered = new Uint8Array(T);
  for (let k = Math.floor(next() * 12); k > 0; k--) {
    const begin = Math.floor(next() * T);
    covered.fill(1, begin, Math.min(T, begin + Math.floor(next() * 40)));
  }
  return of(covered);
}

function of(covered: Uint8Array): Intervals {
  const [begin, end]: number[][] = [[], []];
  for (let t = 0; t < T; t++) {
    if (covered[t] && !(t && covered[t - 1])) begin.push(t);
    if (covered[t] && (t === T - 1 || !covered[t + 1])) end.push(t + 1);
  }
  return new Intervals(Float64Array.from(begin), Float64Array.from(end));
}

function flat(set: Intervals): Uint8Array {
  const covered = new Uint8Array(T);
  for (let i = 0; i < set.n; i++) covered.fill(1, set.begin[i], set.end[i]);
  return covered;
}

test("unions, differences and coverage are those of single nanoseconds", () => {
  const next = random(3);
  for (let round = 0; round < 400; round++) {
    const [a, b, c] = [some(next), some(next), some(next)];
    const [x, y, z] = [flat(a), flat(b), flat(c)];
    assert.deepEqual(flat(a.minus(b)), x.map((v, t) => (v && !y[t] ? 1 : 0)));
    const all = unionOf([a, b, c]);
    assert.deepEqual(flat(all), x.map((v, t) => (v || y[t] || z[t] ? 1 : 0)));
    assert.equal(all.n, of(flat(all)).n, "what touches is one");
    const [low, high] = [next() * T, next() * T].map(Math.floor).sort((p, q) => p - q);
    assert.equal(a.within(low, high), x.slice(low, high).reduce((p, q) => p + q, 0));
    assert.equal(a.within(-Infinity, Infinity), a.total);
    const at = Math.floor(next() * T);
    let wanted = 0;
    while (wanted < a.n && a.end[wanted] <= at) wanted++;
    for (let from = 0; from <= wanted; from++) assert.equal(a.next(at, from), wanted);
  }
});

test("shares of pixels add up to what is covered", () => {
  const next = random(5);
  for (let round = 0; round < 100; round++) {
    const a = some(next);
    const width = 1 + Math.floor(next() * 90);
    const [t0, ns] = [next() * 100 - 50, 0.5 + next() * 9];
    const out = new Float32Array(width);
    a.shares(t0, ns, width, out);
    assert.ok(Math.abs(out.reduce((p, q) => p + q, 0) * ns - a.within(t0, t0 + ns * width)) < 1e-3);
    for (let x = 0; x < width; x++) assert.ok(Math.abs(out[x] - a.within(t0 + x * ns, t0 + (x + 1) * ns) / ns) < 1e-4);
  }
});

interface Span {
  rank: number;
  track: number;
  kind: number;
  begin: number;
  end: number;
  op?: number;
  peer?: number;
}

function storeOf(spans: Span[], meta: Record<string, any> = {}, live = false): Store {
  const store = new Store("a", meta, live);
  const keys = [...new Set(spans.map((each) => each.rank * 16 + each.track))];
  const lanes = { node: keys.map(() => 0), rank: keys.map((key) => key >> 4), track: keys.map((key) => key & 15), index: keys.map(() => 0) };
  const [wire, detail] = [new DataView(new ArrayBuffer(16 * spans.length)), new DataView(new ArrayBuffer(16 * spans.length))];
  spans.forEach((each, i) => {
    wire.setUint32(i * 16, each.begin, true);
    wire.setUint32(i * 16 + 4, each.end - each.begin, true);
    wire.setInt32(i * 16 + 8, each.op ?? -1, true);
    wire.setUint16(i * 16 + 12, keys.indexOf(each.rank * 16 + each.track), true);
    wire.setUint8(i * 16 + 14, each.kind);
    detail.setInt32(i * 16 + 8, each.peer ?? -1, true);
    detail.setInt32(i * 16 + 12, -1, true);
  });
  store.ingest({ seq: 0, count: spans.length, origin_ns: 0, tick_ns: 1, lanes }, wire, detail);
  store.exposure.refresh();
  return store;
}

test("the partition holds to the nanosecond, for all of it and for any range", () => {
  const next = random(9);
  const pick = <V>(values: readonly V[]) => values[Math.floor(next() * values.length)];
  for (let round = 0; round < 60; round++) {
    const spans: Span[] = [{ rank: 0, track: Track.compute, kind: SpanKind.compute, begin: 0, end: 5 }];
    for (let k = 0; k < 25; k++) {
      const [kind, track] = pick([[SpanKind.put, Track.channel], [SpanKind.wait, Track.channel], [SpanKind.segment, Track.nic_rx], [SpanKind.compute, Track.compute], [SpanKind.copy, Track.copy]] as const);
      const begin = Math.floor(next() * 300);
      spans.push({ rank: 0, track, kind, begin, end: begin + Math.floor(next() * 40), op: kind === SpanKind.copy ? pick([-1, 3]) : 2, peer: pick([-1, 0, 1]) });
    }
    const use = storeOf(spans).exposure.ranks.get(0)!;
    const told = new Uint8Array(T);
    const seen = { compute: 1, comm: 2, memcpy: 4 };
    let last = 0;
    for (const each of spans) {
      const self = each.kind === SpanKind.wait && each.peer === 0;
      const put = each.kind === SpanKind.put && each.peer === 0;
      if (self || put) continue;
      const bit = each.kind === SpanKind.compute ? seen.compute : each.track === Track.copy && each.op === -1 ? seen.memcpy : seen.comm;
      for (let t = each.begin; t < each.end; t++) told[t] |= bit;
      last = Math.max(last, each.end);
    }
    for (const [low, high] of [[0, last], [37, 150]]) {
      const count = (f: (v: number) => boolean) => told.slice(low, Math.min(high, last)).filter(f).length;
      const parts = use.parts(low, high);
      assert.equal(parts.compute_ns, count((v) => (v & 1) > 0));
      assert.equal(parts.comm_ns, count((v) => (v & 2) > 0));
      assert.equal(parts.exposed_comm_ns, count((v) => (v & 3) === 2));
      assert.equal(parts.exposed_memcpy_ns, count((v) => v === 4));
      assert.equal(parts.idle_ns, count((v) => v === 0));
      assert.equal(parts.total_ns, parts.compute_ns + parts.exposed_comm_ns + parts.exposed_memcpy_ns + parts.idle_ns);
      assert.equal(parts.overlapped_ns, count((v) => (v & 3) === 3));
    }
  }
});

test("a source that does not compute has no exposure; entries count where their rank says nothing else", () => {
  assert.equal(storeOf([{ rank: 0, track: Track.channel, kind: SpanKind.put, begin: 0, end: 9, peer: 1 }]).exposure.ranks.size, 0);
  const store = storeOf([
    { rank: 0, track: Track.compute, kind: SpanKind.compute, begin: 0, end: 40 },
    { rank: 0, track: Track.control, kind: SpanKind.collective, begin: 50, end: 80 },
    { rank: 0, track: Track.control, kind: SpanKind.collective, begin: 90, end: 120 },
    { rank: 0, track: Track.channel, kind: SpanKind.put, begin: 95, end: 99, peer: 1, op: 4 },
  ]);
  const parts = store.exposure.ranks.get(0)!.parts();
  assert.deepEqual([parts.total_ns, parts.compute_ns, parts.exposed_comm_ns, parts.idle_ns], [120, 40, 34, 46]);
  assert.deepEqual(store.exposure.ranks.get(0)!.at(96), { word: "exposed communication", begin: 95, end: 99 });
  assert.deepEqual(store.exposure.ranks.get(0)!.at(45), { word: "idle", begin: 40, end: 50 });
});

test("the sentence names the rank that exposes most, and what is well is said too", () => {
  const compute = (rank: number, end: number) => ({ rank, track: Track.compute, kind: SpanKind.compute, begin: 0, end });
  const put = (rank: number, begin: number, end: number) => ({ rank, track: Track.channel, kind: SpanKind.put, begin, end, peer: 1 - rank, op: 7 + rank });
  const store = storeOf([compute(0, 1000), put(0, 900, 1300), compute(1, 1000), put(1, 500, 1100)], {}, true);
  const parts = store.exposure.parts();
  assert.equal(sentence(parts), "Rank 0 spends 300 ns of 1.3 µs (23.1 %) on communication that no computation hides; 25.0 % of its communication runs under computation.");
  assert.equal(overlapOf(parts), 60);
  assert.equal(effectiveCommTime(parts), 300);
  assert.deepEqual([store.exposure.worst?.op, store.exposure.worst?.exposed_ns], [7, 300], "a live source finds its worst op itself");
  assert.match(sentence(storeOf([compute(0, 1000), put(0, 100, 900)]).exposure.parts()), /^On every rank all communication runs under computation: of 1 µs nothing is exposed, 0.0 % idle/);
  assert.match(sentence(storeOf([compute(0, 1000)]).exposure.parts()), /^Nothing communicates; rank 0 computes 100.0 % of 1 µs/);
  assert.equal(laneLabel(Track.compute, 0, true), "emulated device");
});
