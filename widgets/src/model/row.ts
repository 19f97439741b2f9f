// One line of the timeline: spans that do not overlap, in order of begin, in columns.
//
// Is: growable typed arrays, binary search, cumulative bytes. Is not: aware of lanes or pixels.
// Invariants: `begin` ascends; unless `overlaps`, `end[i] <= begin[i + 1]`. Times are ns after the source's origin.
import { Pyramid } from "./pyramid";

/** Below this many spans a line of pixels is drawn from the spans themselves. */
export const PYRAMID_FROM = 2048;

export class Row {
  n = 0;
  begin = new Float64Array(64);
  end = new Float64Array(64);
  nbytes = new Float64Array(64);
  op = new Int32Array(64);
  peer = new Int32Array(64);
  step = new Int32Array(64);
  kind = new Uint8Array(64);
  cat = new Uint8Array(64);
  status = new Uint8Array(64);
  overlaps = false;
  longest = 0;
  pyramid: Pyramid | null = null;
  private cumulative = new Float64Array(0);
  private summed = 0;

  constructor(readonly lane: number) {}

  private columns(): (keyof Row)[] {
    return ["begin", "end", "nbytes", "op", "peer", "step", "kind", "cat", "status"];
  }

  private reserve(): void {
    if (this.n < this.begin.length) return;
    for (const name of this.columns()) {
      const old = this[name] as Float64Array;
      const bigger = new (old.constructor as typeof Float64Array)(old.length * 2);
      bigger.set(old);
      (this as any)[name] = bigger;
    }
  }

  /** Index of the first span that begins after t. */
  after(t: number): number {
    let lo = 0;
    let hi = this.n;
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      if (this.begin[mid] <= t) lo = mid + 1;
      else hi = mid;
    }
    return lo;
  }

  /** Index of the first span that may still be visible at t. */
  first(t: number): number {
    return this.overlaps ? this.after(t - this.longest) : Math.max(0, this.after(t) - 1);
  }

  /** Where a span would go, or -1 where it would overlap (and `force` is not set). */
  place(begin: number, end: number, force: boolean): number {
    let at = this.n;
    if (at > 0 && this.begin[at - 1] > begin) at = this.after(begin);
    if (!force && at > 0 && this.end[at - 1] > begin) return -1;
    if (!force && at < this.n && this.begin[at] < end) return -1;
    return at;
  }

  insert(at: number, begin: number, end: number): void {
    this.reserve();
    if (at < this.n) {
      for (const name of this.columns()) (this[name] as Float64Array).copyWithin(at + 1, at, this.n);
    }
    this.begin[at] = begin;
    this.end[at] = end;
    this.longest = Math.max(this.longest, end - begin);
    this.summed = Math.min(this.summed, at);
    this.n += 1;
  }

  /** Called once the columns of span `at` are set. */
  commit(at: number): void {
    if (this.pyramid) this.pyramid.add(this.begin[at], this.end[at], this.cat[at]);
    else if (this.n >= PYRAMID_FROM) this.rebuild();
  }

  private rebuild(): void {
    this.pyramid = new Pyramid();
    for (let i = 0; i < this.n; i++) this.pyramid.add(this.begin[i], this.end[i], this.cat[i]);
  }

  /** Forgets the oldest spans (a live window). */
  drop(count: number): void {
    for (const name of this.columns()) (this[name] as Float64Array).copyWithin(0, count, this.n);
    this.n -= count;
    this.summed = 0;
    if (this.pyramid) this.rebuild();
  }

  /** Bytes moved before t: the bytes of a span are spread evenly over it. */
  bytesBefore(t: number): number {
    if (this.cumulative.length < this.n + 1) {
      const bigger = new Float64Array(this.begin.length + 1);
      bigger.set(this.cumulative.subarray(0, this.summed + 1));
      this.cumulative = bigger;
    }
    for (; this.summed < this.n; this.summed++) {
      this.cumulative[this.summed + 1] = this.cumulative[this.summed] + this.nbytes[this.summed];
    }
    const next = this.after(t);
    if (next === 0) return 0;
    const i = next - 1;
    const length = this.end[i] - this.begin[i];
    const share = length > 0 ? Math.min(1, (t - this.begin[i]) / length) : 1;
    return this.cumulative[i] + this.nbytes[i] * share;
  }

  /** The span at t, or the nearest within `slack` ns; -1: none. */
  at(t: number, slack: number): number {
    const next = this.after(t);
    for (let i = next - 1; i >= 0 && i >= next - (this.overlaps ? 8 : 1); i--) if (this.end[i] >= t - slack) return i;
    return next < this.n && this.begin[next] <= t + slack ? next : -1;
  }

  /** Adds these spans to a line of pixels; the same meaning as Pyramid.scan. */
  scan(t0: number, ns: number, width: number, busy: Float32Array, cat: Uint8Array, best: Float32Array, weight: Float32Array): void {
    if (this.pyramid && this.pyramid.bucketNs <= ns) {
      this.pyramid.scan(t0, ns, width, busy, cat, best, weight);
      return;
    }
    const stop = t0 + width * ns;
    for (let i = this.first(t0); i < this.n && this.begin[i] < stop; i++) {
      const x0 = Math.max(0, (this.begin[i] - t0) / ns);
      const x1 = Math.min(width, Math.max((this.end[i] - t0) / ns, x0 + 0.2));
      for (let x = Math.floor(x0); x < x1; x++) {
        const share = Math.min(x1, x + 1) - Math.max(x0, x);
        busy[x] += share;
        const score = share * weight[this.cat[i]];
        if (score > best[x]) {
          best[x] = score;
          cat[x] = this.cat[i];
        }
      }
    }
  }
}
