// How busy one row is, at every zoom: buckets of 2^shift ns and the pairwise merges above them.
//
// Is: busy time and the category that holds most of it, per bucket, appended to while spans arrive. Is not: spans.
// Invariants: bucket b of level l covers [b << (shift + l), (b + 1) << (shift + l)) ns; a level is right up to `clean`.

export const MAX_BUCKETS = 1 << 14;

interface Level {
  busy: Float32Array;
  weight: Float32Array;
  cat: Uint8Array;
  clean: number;
}

function makeLevel(size: number): Level {
  return { busy: new Float32Array(size), weight: new Float32Array(size), cat: new Uint8Array(size), clean: 0 };
}

function grow(level: Level, size: number): void {
  if (size <= level.busy.length) return;
  let length = Math.max(256, level.busy.length);
  while (length < size) length *= 2;
  const bigger = makeLevel(length);
  bigger.busy.set(level.busy);
  bigger.weight.set(level.weight);
  bigger.cat.set(level.cat);
  level.busy = bigger.busy;
  level.weight = bigger.weight;
  level.cat = bigger.cat;
}

/** Adds `ns` of category `cat` to a bucket: a weighted majority vote, so that one category needs no histogram. */
function vote(level: Level, bucket: number, cat: number, ns: number): void {
  level.busy[bucket] += ns;
  if (level.cat[bucket] === cat || level.weight[bucket] === 0) {
    level.cat[bucket] = cat;
    level.weight[bucket] += ns;
  } else if (level.weight[bucket] >= ns) {
    level.weight[bucket] -= ns;
  } else {
    level.cat[bucket] = cat;
    level.weight[bucket] = ns - level.weight[bucket];
  }
}

export class Pyramid {
  private levels: Level[] = [makeLevel(256)];
  private used = 0;

  constructor(private shift = 6) {}

  /** ns of a bucket at level 0. */
  get bucketNs(): number {
    return 2 ** this.shift;
  }

  add(begin: number, end: number, cat: number): void {
    // An instant still has to be seen: it counts as one nanosecond.
    const stop = Math.max(end, begin + 1);
    while (stop / 2 ** this.shift >= MAX_BUCKETS) this.coarsen();
    const width = 2 ** this.shift;
    const first = Math.max(0, Math.floor(begin / width));
    const last = Math.max(first, Math.ceil(stop / width) - 1);
    const base = this.levels[0];
    grow(base, last + 1);
    for (let b = first; b <= last; b++) {
      const ns = Math.min(stop, (b + 1) * width) - Math.max(begin, b * width);
      if (ns > 0) vote(base, b, cat, ns);
    }
    this.used = Math.max(this.used, last + 1);
    base.clean = this.used;
    for (let l = 1; l < this.levels.length; l++) {
      this.levels[l].clean = Math.min(this.levels[l].clean, first >> l);
    }
  }

  private coarsen(): void {
    this.refresh(1);
    this.levels.shift();
    this.shift += 1;
    this.used = (this.used + 1) >> 1;
    this.levels[0].clean = this.used;
  }

  /** Makes level `l` right for everything added so far. */
  private refresh(l: number): void {
    while (this.levels.length <= l) this.levels.push(makeLevel(128));
    for (let k = 1; k <= l; k++) {
      const below = this.levels[k - 1];
      const level = this.levels[k];
      const count = (this.used + (1 << k) - 1) >> k;
      grow(level, count);
      for (let b = level.clean; b < count; b++) this.merge(below, level, b);
      level.clean = count;
    }
  }

  private merge(below: Level, level: Level, b: number): void {
    const left = 2 * b;
    const right = left + 1 < below.busy.length ? left + 1 : left;
    const lw = below.weight[left];
    const rw = right === left ? 0 : below.weight[right];
    level.busy[b] = below.busy[left] + (right === left ? 0 : below.busy[right]);
    if (below.cat[left] === below.cat[right]) {
      level.cat[b] = below.cat[left];
      level.weight[b] = lw + rw;
    } else {
      level.cat[b] = lw >= rw ? below.cat[left] : below.cat[right];
      level.weight[b] = Math.abs(lw - rw);
    }
  }

  /** Fills a line of pixels: pixel x covers [t0 + x * ns, t0 + (x + 1) * ns). Adds to what is there; `weight` by category decides what is shown. */
  scan(t0: number, ns: number, width: number, busy: Float32Array, cat: Uint8Array, best: Float32Array, weight: Float32Array): void {
    const l = Math.max(0, Math.floor(Math.log2(ns)) - this.shift);
    this.refresh(l);
    const level = this.levels[l];
    const bucket = 2 ** (this.shift + l);
    const count = (this.used + (1 << l) - 1) >> l;
    let from = Math.floor(t0 / bucket);
    for (let x = 0; x < width; x++) {
      const to = Math.max(from + 1, Math.floor((t0 + (x + 1) * ns) / bucket));
      const lo = Math.max(0, from);
      const hi = Math.min(count, to);
      for (let b = lo; b < hi; b++) {
        const share = level.busy[b] / (bucket * (to - from));
        busy[x] += share;
        const score = share * weight[level.cat[b]];
        if (score > best[x]) {
          best[x] = score;
          cat[x] = level.cat[b];
        }
      }
      from = Math.max(from, Math.floor((t0 + (x + 1) * ns) / bucket));
    }
  }
}
