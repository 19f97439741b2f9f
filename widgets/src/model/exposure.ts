// What the time of each rank goes to: computation, communication that no computation hides, copies, nothing.
//
//   exposed comm    ∪ comm − ∪ compute              idle    total − compute − exposed comm − exposed memcpy
//   exposed memcpy  ∪ memcpy − ∪ compute − ∪ comm
//
// Is: the rules of ccl_lab/trace/exposed.py over the spans of a store, so that pictures, live numbers and numbers of a
// selected range need no kernel. Is not: the numbers of a whole trace (Python tells those). Only a source that computes has
// an exposure. Invariant: total = compute + exposed + memcpy + idle, for every range.
import { Builder, Intervals, unionOf } from "./intervals";
import { Row } from "./row";
import { SpanKind, Track } from "./schema";
import type { Lane, Store } from "./store";

export const Use = { nothing: 0, compute: 1, comm: 2, memcpy: 3, entry: 4 } as const;
// A recomputation may take this share of the time.
const SHARE = 0.1;

/** What a span keeps its rank busy with; `entry` is from entry to end of a collective, communication where nothing else is said. */
export function useOf(lane: Lane, row: Row, i: number): number {
  const kind = row.kind[i];
  if (lane.rank < 0) return Use.nothing;
  if (kind === SpanKind.compute) return lane.track === Track.compute ? Use.compute : Use.nothing;
  if (kind === SpanKind.collective) return lane.track === Track.control ? Use.entry : Use.comm;
  if (kind > SpanKind.ready) return Use.nothing;
  if (lane.track === Track.copy && kind === SpanKind.copy && row.op[i] < 0) return Use.memcpy;
  const wire = lane.track === Track.nic_tx || lane.track === Track.nic_rx || lane.track === Track.fabric;
  return kind <= SpanKind.flush && row.peer[i] === lane.rank && !wire ? Use.nothing : Use.comm;
}

export interface Parts {
  rank: number;
  total_ns: number;
  compute_ns: number;
  comm_ns: number;
  exposed_comm_ns: number;
  exposed_memcpy_ns: number;
  idle_ns: number;
  overlapped_ns: number;
}

export interface WorstOp {
  rank: number;
  op: number;
  begin: number;
  end: number;
  exposed_ns: number;
  busy_ns: number;
  name: string;
  coll_id?: number;
}

export class RankUse {
  comm: Intervals = Intervals.none;
  compute: Intervals = Intervals.none;
  exposed: Intervals = Intervals.none;
  memcpy: Intervals = Intervals.none;
  begin = 0;
  end = 0;

  constructor(readonly rank: number) {}

  /** The partition of [t0, t1), cut to the time the rank takes part. */
  parts(t0 = -Infinity, t1 = Infinity): Parts {
    const [from, to] = [Math.max(t0, this.begin), Math.min(t1, this.end)];
    const total = Math.max(0, to - from);
    const [compute, comm, exposed, memcpy] = [this.compute, this.comm, this.exposed, this.memcpy].map((each) => each.within(from, to));
    return {
      rank: this.rank,
      total_ns: total,
      compute_ns: compute,
      comm_ns: comm,
      exposed_comm_ns: exposed,
      exposed_memcpy_ns: memcpy,
      idle_ns: total - compute - exposed - memcpy,
      overlapped_ns: comm - exposed,
    };
  }

  /** What happens at t: a word, and the interval in which it stays so. */
  at(t: number): { word: string; begin: number; end: number } {
    const sets: [string, Intervals][] = [["exposed communication", this.exposed], ["computation", this.compute], ["exposed copy", this.memcpy]];
    let [from, to] = [this.begin, this.end];
    for (const [word, set] of sets) {
      const i = set.next(t);
      if (i < set.n && set.begin[i] <= t) return { word, begin: set.begin[i], end: set.end[i] };
      if (i > 0) from = Math.max(from, set.end[i - 1]);
      if (i < set.n) to = Math.min(to, set.begin[i]);
    }
    return { word: "idle", begin: from, end: to };
  }
}

/** Spans of one use of one row, in order. */
function collect(lane: Lane, row: Row, use: number): Intervals {
  const found = new Builder(row.n);
  for (let i = 0; i < row.n; i++) if (useOf(lane, row, i) === use) found.add(row.begin[i], row.end[i]);
  return found.done();
}

/** Entries of collectives within which their rank says nothing else. */
function bareEntries(lanes: Lane[], said: Intervals): Intervals {
  const bare = lanes.flatMap((lane) => lane.rows.map((row) => {
    const found = new Builder(row.n);
    for (let i = 0; i < row.n; i++) if (useOf(lane, row, i) === Use.entry && !said.within(row.begin[i], row.end[i])) found.add(row.begin[i], row.end[i]);
    return found.done();
  }));
  return unionOf(bare);
}

function measure(rank: number, lanes: Lane[]): RankUse {
  const use = new RankUse(rank);
  const all = (wanted: number, among: Lane[]) => unionOf(among.flatMap((lane) => lane.rows.map((row) => collect(lane, row, wanted))));
  use.compute = all(Use.compute, lanes);
  const comm = all(Use.comm, lanes.filter((lane) => lane.track !== Track.compute));
  const control = lanes.filter((lane) => lane.track === Track.control);
  use.comm = comm.union(bareEntries(control, use.compute.union(comm)));
  use.exposed = use.comm.minus(use.compute);
  use.memcpy = all(Use.memcpy, lanes.filter((lane) => lane.track === Track.copy)).minus(use.compute).minus(use.comm);
  [use.begin, use.end] = [Infinity, -Infinity];
  for (const lane of lanes) {
    for (const row of lane.rows) {
      for (let i = 0; i < row.n; i++) {
        if (useOf(lane, row, i) === Use.nothing) continue;
        use.begin = Math.min(use.begin, row.begin[i]);
        use.end = Math.max(use.end, row.end[i]);
      }
    }
  }
  if (use.begin > use.end) use.begin = use.end = 0;
  return use;
}

/** The op of a rank with most exposed time; of spans on wires the op's own lane tells. */
function worstOf(use: RankUse, lanes: Lane[], than: WorstOp | null): WorstOp | null {
  let worst = than;
  for (const lane of lanes) {
    if (lane.track !== Track.channel && lane.track !== Track.fabric) continue;
    for (const row of lane.rows) {
      for (let i = 0; i < row.n; i++) {
        const busy = row.end[i] - row.begin[i];
        if (busy <= (worst?.exposed_ns ?? 0) || row.op[i] < 0 || useOf(lane, row, i) !== Use.comm) continue;
        const exposed = busy - use.compute.within(row.begin[i], row.end[i]);
        if (exposed <= (worst?.exposed_ns ?? 0)) continue;
        worst = { rank: use.rank, op: row.op[i], begin: row.begin[i], end: row.end[i], exposed_ns: exposed, busy_ns: busy, name: `op ${row.op[i]}` };
      }
    }
  }
  return worst;
}

export class Exposure {
  /** By rank; empty for a source that does not compute. */
  ranks = new Map<number, RankUse>();
  worst: WorstOp | null = null;
  /** Raised when ranks were measured anew. */
  version = 0;
  private seen = new Map<number, string>();
  private due = -Infinity;
  private timer: ReturnType<typeof setTimeout> | null = null;

  constructor(private store: Store) {}

  /** Measures what is new; while spans stream in, only so often that it takes a tenth of the time. */
  refresh(): void {
    if (!this.store.computes) return;
    const now = performance.now();
    if (now < this.due) {
      this.timer ??= setTimeout(() => {
        this.timer = null;
        this.refresh();
        this.store.changed();
      }, this.due - now);
      return;
    }
    if (this.measureRanks()) this.version += 1;
    this.due = now + (performance.now() - now) / SHARE;
  }

  private measureRanks(): boolean {
    const byRank = new Map<number, Lane[]>();
    for (const lane of this.store.lanes) {
      if (lane.rank < 0) continue;
      if (!byRank.has(lane.rank)) byRank.set(lane.rank, []);
      byRank.get(lane.rank)!.push(lane);
    }
    let changed = false;
    for (const [rank, lanes] of byRank) {
      const stamp = lanes.map((lane) => lane.rows.map((row) => `${row.n}/${row.begin[0]}`).join()).join(";");
      if (this.seen.get(rank) === stamp) continue;
      this.seen.set(rank, stamp);
      const use = measure(rank, lanes);
      if (use.end > use.begin) this.ranks.set(rank, use);
      changed = true;
    }
    if (changed && this.store.live) {
      this.worst = null;
      for (const [rank, use] of this.ranks) this.worst = worstOf(use, byRank.get(rank) ?? [], this.worst);
    }
    return changed;
  }

  clear(): void {
    this.ranks.clear();
    this.seen.clear();
    this.worst = null;
    this.version += 1;
  }

  /** Ranks in order with the partition of [t0, t1). */
  parts(t0 = -Infinity, t1 = Infinity): Parts[] {
    return [...this.ranks.values()].sort((a, b) => a.rank - b.rank).map((use) => use.parts(t0, t1));
  }
}
