// Exposure on the canvas of a timeline: stacked columns of a folded rank, and hatching over communication nobody hides.
//
// Is: pixels. Is not: what is exposed (model/exposure). Invariants: the cost is bounded by pixels, not by spans; stripes
// stand still on the picture, whether painted by pixel or by rectangle.
import { Theme, rgbOf } from "../draw/theme";
import { CATEGORIES, COMPUTE, COPY, EXPOSED, packed, parseHex } from "../draw/palette";
import { Exposure, RankUse } from "../model/exposure";

const PERIOD = 6;
const STRIPE = 2;

/** What a rank does in each pixel of the picture: shares of its time. */
export interface Shares {
  comm: Float32Array;
  compute: Float32Array;
  exposed: Float32Array;
  memcpy: Float32Array;
}

/** Half of each colour. */
function mix(a: number, b: number): number {
  return (((a & 0xfefefe) >>> 1) + ((b & 0xfefefe) >>> 1)) | 0xff000000;
}

function solid(color: string, ground: number[], f: number): number {
  const rgb = parseHex(color);
  return packed(...(ground.map((v, i) => v + (rgb[i] - v) * f) as [number, number, number]));
}

export class Hatch {
  private pool = new Map<number, Shares>();
  private fresh = new Set<number>();
  private width = 0;
  private t0 = 0;
  private ns = 1;
  private period = PERIOD;
  private ink = 0;
  private colors = { compute: 0, exposed: 0, memcpy: 0 };
  private pattern: CanvasPattern | null = null;
  private patternFor = "";

  constructor(private exposure: Exposure) {}

  theme(theme: Theme): void {
    const ground = rgbOf(theme.ground);
    this.ink = packed(...rgbOf(theme.ink));
    this.colors = { compute: solid(CATEGORIES[COMPUTE].color, ground, 1), exposed: solid(CATEGORIES[EXPOSED].color, ground, 1), memcpy: solid(CATEGORIES[COPY].color, ground, 1) };
    this.patternFor = "";
  }

  /** A new frame: what was measured for the last one holds no more. */
  begin(t0: number, ns: number, width: number, ratio: number): void {
    if (width !== this.width) this.pool.clear();
    [this.t0, this.ns, this.width, this.period] = [t0, ns, width, Math.max(4, Math.round(PERIOD * ratio))];
    this.fresh.clear();
  }

  use(rank: number): RankUse | undefined {
    return this.exposure.ranks.get(rank);
  }

  private shares(rank: number): Shares | null {
    const use = this.use(rank);
    if (!use) return null;
    let made = this.pool.get(rank);
    if (!made) {
      const column = () => new Float32Array(this.width);
      this.pool.set(rank, (made = { comm: column(), compute: column(), exposed: column(), memcpy: column() }));
    }
    if (!this.fresh.has(rank)) {
      this.fresh.add(rank);
      for (const name of ["comm", "compute", "exposed", "memcpy"] as const) use[name].shares(this.t0, this.ns, this.width, made[name]);
    }
    return made;
  }

  private get stripe(): number {
    return Math.max(1, Math.round((this.period * STRIPE) / PERIOD));
  }

  /** Stripes over the pixels [y0, y1) of a lane, from the top down as far as what its rank communicates then is exposed. */
  lane(pixels: Uint32Array, busy: Float32Array, rank: number, y0: number, y1: number): void {
    const shares = this.shares(rank);
    if (!shares) return;
    const { comm, exposed } = shares;
    const { width, period, stripe, ink } = this;
    for (let y = y0; y < y1; y++) {
      const line = y * width;
      const above = (y - y0 + 0.5) / (y1 - y0);
      for (let x = (period - (y % period)) % period; x < width + stripe; x += period) {
        for (let k = x - stripe; k < x; k++) {
          if (k >= 0 && k < width && busy[k] > 0 && exposed[k] > above * comm[k]) pixels[line + k] = mix(mix(pixels[line + k], ink), ink);
        }
      }
    }
  }

  /** Columns of a rank in the pixels [y0, y1): from below computation, exposed communication (hatched), exposed copies; the rest is idle. */
  stack(pixels: Uint32Array, rank: number, y0: number, y1: number, bottom: number): boolean {
    const shares = this.shares(rank);
    if (!shares) return false;
    const { compute, exposed, memcpy } = shares;
    const { width, period, stripe } = this;
    const height = y1 - y0;
    const striped = mix(mix(this.colors.exposed, this.ink), this.ink);
    for (let x = 0; x < width; x++) {
      const a = compute[x] * height;
      const b = a + exposed[x] * height;
      const c = b + memcpy[x] * height;
      if (c <= 0) continue;
      // Something there is at least one pixel high.
      const top = Math.max(1, Math.round(c));
      for (let k = 0; k < top; k++) {
        const y = y1 - 1 - k;
        if (y < 0 || y >= bottom) continue;
        const middle = k + 0.5;
        let color = this.colors.memcpy;
        if (middle < a || (b === a && c === a)) color = this.colors.compute;
        else if (middle < b || c === b) color = (x + y) % period >= period - stripe ? striped : this.colors.exposed;
        pixels[y * width + x] = color;
      }
    }
    return true;
  }

  /** Stripes over the exposed parts of one span that is drawn as a rectangle (CSS pixels). True where there was any. */
  span(ctx: CanvasRenderingContext2D, use: RankUse, begin: number, end: number, xAt: (t: number) => number, y: number, h: number, ratio: number): boolean {
    const { exposed } = use;
    const [from, to] = [Math.max(begin, this.t0), Math.min(end, this.t0 + this.ns * this.width)];
    let i = exposed.next(from);
    if (i >= exposed.n || exposed.begin[i] >= to) return false;
    ctx.fillStyle = this.stripes(ctx, ratio);
    let any = false;
    while (i < exposed.n && exposed.begin[i] < to) {
      const x = xAt(Math.max(from, exposed.begin[i]));
      const right = xAt(Math.min(to, exposed.end[i]));
      if (right - x > 0.3) {
        ctx.fillRect(x, y, right - x, h);
        any = true;
      }
      // What begins within half a pixel of here cannot be told apart.
      i = Math.max(i + 1, exposed.next(exposed.end[i] + (right - x > 0.3 ? 0 : this.ns / 2), i));
    }
    return any;
  }

  private stripes(ctx: CanvasRenderingContext2D, ratio: number): CanvasPattern | string {
    const key = `${this.period}/${this.ink}`;
    if (this.patternFor !== key) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = this.period;
      const image = new ImageData(this.period, this.period);
      const pixels = new Uint32Array(image.data.buffer);
      const ink = ((this.ink & 0xffffff) | (191 << 24)) >>> 0;
      for (let y = 0; y < this.period; y++) for (let x = 0; x < this.period; x++) if ((x + y) % this.period >= this.period - this.stripe) pixels[y * this.period + x] = ink;
      tile.getContext("2d")!.putImageData(image, 0, 0);
      this.pattern = ctx.createPattern(tile, "repeat");
      this.patternFor = key;
    }
    this.pattern?.setTransform(new DOMMatrix().scale(1 / ratio));
    return this.pattern ?? "#888";
  }
}
