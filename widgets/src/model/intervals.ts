// Disjoint intervals of time in order: unions, differences, and how much of any stretch they cover.
//
// Is: sorted columns of begins and ends with running sums. Is not: spans. Invariants: begins ascend, no two intervals touch;
// times are ns in doubles, so all sums are exact below 2^53 ns (104 days).

export class Intervals {
  private sums: Float64Array | null = null;

  constructor(readonly begin: Float64Array, readonly end: Float64Array, readonly n = begin.length) {}

  static readonly none = new Intervals(new Float64Array(0), new Float64Array(0));

  /** Covered ns before each interval; the last entry is the whole. */
  private get covered(): Float64Array {
    if (this.sums) return this.sums;
    const sums = new Float64Array(this.n + 1);
    for (let i = 0; i < this.n; i++) sums[i + 1] = sums[i] + this.end[i] - this.begin[i];
    return (this.sums = sums);
  }

  get total(): number {
    return this.covered[this.n];
  }

  /** Index of the first interval that ends after t, looked for from `from` on (whose predecessors all end before t). */
  next(t: number, from = 0): number {
    let [low, step] = [from, 1];
    while (low + step < this.n && this.end[low + step] <= t) {
      low += step;
      step *= 2;
    }
    let high = Math.min(this.n, low + step + 1);
    while (low < high) {
      const mid = (low + high) >> 1;
      if (this.end[mid] <= t) low = mid + 1;
      else high = mid;
    }
    return low;
  }

  private before(t: number, i: number): number {
    return this.covered[i] + (i < this.n ? Math.max(0, t - this.begin[i]) : 0);
  }

  /** ns of [t0, t1) that are covered. */
  within(t0: number, t1: number): number {
    if (t1 <= t0) return 0;
    const i = this.next(t0);
    return this.before(t1, this.next(t1, i)) - this.before(t0, i);
  }

  /** Share of each pixel that is covered, f32[width]; pixel x is [t0 + x * ns, t0 + (x + 1) * ns). Cost: a few steps a pixel. */
  shares(t0: number, ns: number, width: number, out: Float32Array): void {
    let i = this.next(t0);
    let was = this.before(t0, i);
    for (let x = 0; x < width; x++) {
      const t = t0 + (x + 1) * ns;
      if (i >= this.n || this.begin[i] >= t) {
        out[x] = 0;
        continue;
      }
      i = this.next(t, i);
      const now = this.before(t, i);
      out[x] = (now - was) / ns;
      was = now;
    }
  }

  /** The time that this or the other covers. */
  union(other: Intervals): Intervals {
    if (!this.n) return other;
    if (!other.n) return this;
    const joined = new Builder(this.n + other.n);
    let [i, j] = [0, 0];
    while (i < this.n || j < other.n) {
      if (j >= other.n || (i < this.n && this.begin[i] <= other.begin[j])) joined.add(this.begin[i], this.end[i++]);
      else joined.add(other.begin[j], other.end[j++]);
    }
    return joined.done();
  }

  /** The time that this covers and the other does not. */
  minus(other: Intervals): Intervals {
    if (!this.n || !other.n) return this;
    const left = new Builder(this.n + other.n);
    let j = 0;
    for (let i = 0; i < this.n; i++) {
      let t = this.begin[i];
      const stop = this.end[i];
      j = other.next(t, j);
      for (let k = j; t < stop; k++) {
        const cut = k < other.n ? Math.min(stop, other.begin[k]) : stop;
        if (cut > t) left.add(t, cut);
        t = k < other.n ? other.end[k] : stop;
      }
    }
    return left.done();
  }
}

/** Takes intervals in order of their begins; those that touch become one. */
export class Builder {
  private begin: Float64Array;
  private end: Float64Array;
  private n = 0;

  constructor(size: number) {
    this.begin = new Float64Array(size);
    this.end = new Float64Array(size);
  }

  add(begin: number, end: number): void {
    if (end <= begin) return;
    if (this.n && begin <= this.end[this.n - 1]) {
      if (end > this.end[this.n - 1]) this.end[this.n - 1] = end;
      return;
    }
    this.begin[this.n] = begin;
    this.end[this.n++] = end;
  }

  done(): Intervals {
    return new Intervals(this.begin.slice(0, this.n), this.end.slice(0, this.n));
  }
}

/** The union of many, pairwise, so that each interval is looked at log(count) times. */
export function unionOf(parts: Intervals[]): Intervals {
  let left = parts.filter((part) => part.n);
  while (left.length > 1) {
    const next: Intervals[] = [];
    for (let i = 0; i < left.length; i += 2) next.push(i + 1 < left.length ? left[i].union(left[i + 1]) : left[i]);
    left = next;
  }
  return left[0] ?? Intervals.none;
}
