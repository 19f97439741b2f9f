// The spans of one source (one trace, or one running world): lanes, their rows, and who wants to know of news.
//
// Is: the model that every view of a source shares. Is not: fed by itself; see receive.ts.
// Invariants: a lane is (node, rank, track, index) and keeps its number; its rows never overlap but the last may.
import { Exposure } from "./exposure";
import { Faults } from "./faults";
import { SpanKind, Track, TrackNames, readWireSpan, WireSpanBytes } from "./schema";
import { categoryOf } from "../draw/palette";
import { Row } from "./row";

export const DetailBytes = 16;
const MAX_DEPTH = 6;
const PAUSE_NS = 50e6;

export interface LaneTable {
  node: number[];
  rank: number[];
  track: number[];
  index: number[];
  /** Number of the first row; absent: 0. */
  from?: number;
}

export interface Lane {
  id: number;
  node: number;
  rank: number;
  track: number;
  index: number;
  label: string;
  rows: Row[];
}

export interface Batch {
  seq: number;
  count: number;
  origin_ns: number;
  tick_ns: number;
  lanes?: LaneTable;
  drops?: number;
  /** ns of time zero on the common clock, in decimal (beyond what a double holds). */
  origin?: string;
}

const SHORT: Record<number, string> = {
  [Track.channel]: "channel",
  [Track.nic_tx]: "tx NIC",
  [Track.nic_rx]: "rx NIC",
  [Track.compute]: "compute",
  [Track.copy]: "copy",
  [Track.fabric]: "fabric",
  [Track.control]: "control",
};

export function laneLabel(track: number, index: number, emulated = false): string {
  if (emulated && track === Track.compute) return index > 0 ? `emulated dev. ${index}` : "emulated device";
  const numbered = track === Track.channel || track === Track.nic_tx || track === Track.nic_rx;
  const word = SHORT[track] ?? TrackNames[track] ?? `track ${track}`;
  return numbered || index > 0 ? `${word} ${index}` : word;
}

/** True where computation is a timer that stands for a device. */
export function emulatedDevice(meta: Record<string, any>): boolean {
  return meta.device === "emulated";
}

export class Store {
  lanes: Lane[] = [];
  spans = 0;
  drops = 0;
  end = 0;
  /** Begin of the newest run of spans without a long pause before it. */
  burst = 0;
  /** Raised when lanes were added, so that layouts are made anew. */
  shape = 0;
  /** True once there is a span of computation: then there is something to hide communication under. */
  computes = false;
  readonly exposure = new Exposure(this);
  private listeners = new Set<() => void>();
  private announced = false;
  readonly faults: Faults;

  constructor(
    readonly id: string,
    readonly meta: Record<string, any>,
    readonly live: boolean,
    private capacity = 2_000_000,
  ) {
    this.faults = new Faults(live);
    if (meta.faults) this.faults.take(meta.faults);
    if (meta.origin_ns) this.faults.setOrigin(String(meta.origin_ns));
  }

  /** What computes in a running world ("emulated", …), as its status says. */
  setDevice(word: string): void {
    if (this.meta.device === word) return;
    this.meta.device = word;
    for (const lane of this.lanes) lane.label = laneLabel(lane.track, lane.index, emulatedDevice(this.meta));
    this.shape += 1;
    this.changed();
  }

  /** Calls back, at most once a frame, after spans arrived; returns how to stop. */
  listen(callback: () => void): () => void {
    this.listeners.add(callback);
    return () => this.listeners.delete(callback);
  }

  changed(): void {
    if (this.announced) return;
    this.announced = true;
    requestAnimationFrame(() => {
      this.announced = false;
      for (const callback of [...this.listeners]) callback();
    });
  }

  addLanes(table: LaneTable): void {
    const known = this.lanes.length;
    for (let i = Math.max(0, known - (table.from ?? 0)); i < table.rank.length; i++) {
      const [node, rank, track, index] = [table.node[i], table.rank[i], table.track[i], table.index[i]];
      this.lanes.push({ id: this.lanes.length, node, rank, track, index, label: laneLabel(track, index, emulatedDevice(this.meta)), rows: [] });
    }
    if (this.lanes.length > known) this.shape += 1;
  }

  /** Takes one batch: `wire` holds WireSpan records, `detail` (f64 bytes, i32 peer, i32 step) records. */
  ingest(batch: Batch, wire: DataView, detail: DataView): void {
    if (batch.lanes) this.addLanes(batch.lanes);
    if (batch.origin) {
      this.meta.origin_ns = batch.origin;
      this.faults.setOrigin(batch.origin);
    }
    for (let i = 0; i < batch.count; i++) this.ingestOne(batch, wire, detail, i);
    if (batch.drops !== undefined) this.drops = batch.drops;
    if (this.live && this.spans > this.capacity) this.forget();
    this.changed();
  }

  private ingestOne(batch: Batch, wire: DataView, detail: DataView, i: number): void {
    const span = readWireSpan(wire, i);
    const lane = this.lanes[span.lane];
    if (!lane) return;
    const begin = batch.origin_ns + span.begin * batch.tick_ns;
    const end = begin + span.length * batch.tick_ns;
    const [row, at] = this.roomFor(lane, begin, end);
    row.insert(at, begin, end);
    row.nbytes[at] = detail.getFloat64(i * DetailBytes, true);
    row.peer[at] = detail.getInt32(i * DetailBytes + 8, true);
    row.step[at] = detail.getInt32(i * DetailBytes + 12, true);
    row.op[at] = span.op_id;
    row.kind[at] = span.kind;
    row.status[at] = span.status;
    row.cat[at] = categoryOf(lane.track, span.kind);
    row.commit(at);
    if (span.kind === SpanKind.compute && !this.computes) {
      this.computes = true;
      this.shape += 1;
    }
    if (span.kind === SpanKind.fault || span.kind === SpanKind.recovery) this.faults.span(span.kind, begin, end, lane);
    this.spans += 1;
    if (begin > this.end + PAUSE_NS) this.burst = begin;
    if (end > this.end) this.end = end;
  }

  private roomFor(lane: Lane, begin: number, end: number): [Row, number] {
    for (const row of lane.rows) {
      const at = row.place(begin, end, false);
      if (at >= 0) return [row, at];
    }
    if (lane.rows.length < MAX_DEPTH) {
      const row = new Row(lane.id);
      lane.rows.push(row);
      this.shape += 1;
      return [row, 0];
    }
    const row = lane.rows[MAX_DEPTH - 1];
    row.overlaps = true;
    return [row, row.place(begin, end, true)];
  }

  private forget(): void {
    for (const lane of this.lanes) {
      for (const row of lane.rows) {
        const count = row.n >> 2;
        row.drop(count);
        this.spans -= count;
      }
    }
  }

  clear(): void {
    this.lanes = [];
    this.spans = 0;
    this.end = 0;
    this.faults.clear();
    this.exposure.clear();
    this.shape += 1;
  }

  /** Begin of the oldest span kept. */
  begin(): number {
    let t = Infinity;
    for (const lane of this.lanes) for (const row of lane.rows) if (row.n) t = Math.min(t, row.begin[0]);
    return Number.isFinite(t) ? t : 0;
  }

  /** Categories that occur, for a legend. */
  categories(): Set<number> {
    const seen = new Set<number>();
    for (const lane of this.lanes) {
      for (const row of lane.rows) {
        const step = Math.max(1, row.n >> 8);
        for (let i = 0; i < row.n; i += step) seen.add(row.cat[i]);
      }
    }
    return seen;
  }
}

export { WireSpanBytes };
