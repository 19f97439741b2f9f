// Faults and recovery on the axis of time: marks, the intervals in which a NIC was not whole, what can be undone.
//
// Is: what Python told (ccl_lab/widgets/faults.py), and marks of spans of kinds fault and recovery, where a trace has only
// those. Is not: drawing. Invariant: every mark has an icon and a word; times are ns after the source's origin.
import { SpanKind, Track } from "./schema";

export type Look = "fault" | "lost" | "verdict" | "heal";

export interface Mark {
  t: number;
  look: Look;
  icon: string;
  word: string;
  where: string;
  text: string;
  count: number;
  /** Somebody did it (a fault, an undo); else the engine found it or did it. */
  cause: boolean;
  node: number;
  nic: number;
}

export interface Down {
  node: number;
  nic: number;
  word: string;
  icon: string;
  dead: boolean;
  from: number;
  /** Infinity: still. */
  to: number;
  /** When the last path over it was replaced; null: not yet, or not known. */
  repaired: number | null;
}

export interface Active {
  number: number;
  word: string;
  where: string;
  python: string;
  fired: number | null;
  undo: boolean;
  node?: number;
  nic?: number;
  rank?: number;
}

export interface State {
  state: string;
  icon: string;
}

const SAME_NS = 5e6;

/** For what the engine did: ns since the last fault or undo before it; null for those themselves. */
export function sinceCause(marks: Mark[], mark: Mark): number | null {
  if (mark.cause) return null;
  const causes = marks.filter((each) => each.cause && each.t <= mark.t);
  return causes.length ? mark.t - Math.max(...causes.map((each) => each.t)) : null;
}

/** ns after the origin of a time in decimal; the difference of two large numbers that a double cannot hold. */
function after(at: string, origin: bigint): number {
  return Number(BigInt(at) - origin);
}

export class Faults {
  version = -1;
  marks: Mark[] = [];
  downs: Down[] = [];
  active: Active[] = [];
  private nics = new Map<string, State>();
  private ranks = new Map<number, State>();
  private told: any = null;
  private origin = 0n;
  private fromSpans: Mark[] = [];

  constructor(private live: boolean) {}

  /** Takes what Python says of all of it. */
  take(told: any): void {
    this.told = told;
    this.version = told.version ?? 0;
    this.active = told.active ?? [];
    this.nics = new Map((told.nics ?? []).map((n: any) => [`${n.node}.${n.nic}`, n]));
    this.ranks = new Map((told.ranks ?? []).map((r: any) => [r.rank, r]));
    this.place();
  }

  /** The origin of the source's times; unknown ("0") until the first span came. */
  setOrigin(origin: string): void {
    if (BigInt(origin) === this.origin) return;
    this.origin = BigInt(origin);
    this.place();
  }

  private get known(): boolean {
    return !this.live || this.origin !== 0n;
  }

  private place(): void {
    const { told, origin } = this;
    if (!told) return;
    this.marks = (told.marks ?? []).map((m: any) => ({ ...m, t: after(m.at, origin) }));
    this.downs = (told.downs ?? []).map((d: any) => ({
      ...d,
      from: after(d.from, origin),
      to: d.to === null ? Infinity : after(d.to, origin),
      repaired: d.repaired === null ? null : after(d.repaired, origin),
    }));
  }

  /** A span of kind fault or recovery: a mark where nothing better is known. */
  span(kind: number, begin: number, end: number, lane: { node: number; rank: number; track: number; index: number }): void {
    const nic = lane.track === Track.nic_tx || lane.track === Track.nic_rx ? lane.index : -1;
    const where = nic >= 0 ? `node ${lane.node} NIC ${nic}` : `rank ${lane.rank}`;
    const base = { where, text: "", count: 1, node: lane.node, nic, cause: kind === SpanKind.fault };
    if (kind === SpanKind.fault) this.add({ ...base, t: begin, look: "fault", icon: "⚡", word: "fault" });
    else if (kind === SpanKind.recovery) this.add({ ...base, t: end, look: "heal", icon: "▶", word: "resumed" });
  }

  private add(mark: Mark): void {
    const same = this.fromSpans.find((m) => m.word === mark.word && Math.abs(m.t - mark.t) < SAME_NS);
    if (!same) this.fromSpans.push(mark);
    else {
      same.count += 1;
      if (mark.where !== same.where && !same.where.endsWith("…")) same.where += " …";
    }
  }

  clear(): void {
    this.fromSpans = [];
  }

  /** Marks for pictures of time: what Python told, or else what the spans say. */
  shown(): Mark[] {
    if (!this.told || !this.marks.length) return this.fromSpans;
    return this.known ? this.marks : [];
  }

  /** Intervals of a NIC, oldest first. */
  of(node: number, nic: number): Down[] {
    return this.known ? this.downs.filter((d) => d.node === node && d.nic === nic) : [];
  }

  nic(node: number, nic: number): State | undefined {
    return this.nics.get(`${node}.${nic}`);
  }

  rank(rank: number): State | undefined {
    return this.ranks.get(rank);
  }

  /** Faults of one NIC {node, nic} or rank {rank} that can be undone. */
  undoable(where: Record<string, number>): Active[] {
    return this.active.filter((each) => each.undo && Object.entries(where).every(([name, value]) => (each as any)[name] === value));
  }

  /** The last moment something happened at. */
  end(): number {
    return this.known ? this.marks.reduce((t, mark) => Math.max(t, mark.t), 0) : 0;
  }

  /** "2 NICs down, …" in words, or "" where all is whole. */
  summary(): string {
    const counts = new Map<string, number>();
    for (const { state } of [...this.nics.values()]) counts.set(`NIC ${state}`, (counts.get(`NIC ${state}`) ?? 0) + 1);
    for (const { state } of [...this.ranks.values()]) counts.set(`rank ${state}`, (counts.get(`rank ${state}`) ?? 0) + 1);
    return [...counts].map(([word, n]) => `${n} ${n > 1 ? word.replace(/^(NIC|rank)/, "$1s") : word}`).join(" · ");
  }
}
