// Draws the lines of a timeline onto a canvas.
//
//   zoomed out   each line becomes one line of pixels (Row.scan: pyramid or spans), copied down to its height in an ImageData
//   zoomed in    where few spans are visible on a line, exact rectangles with words
//   computing    what no computation hides is hatched; a folded rank is a stacked column per pixel (hatch_paint)
//
// Is: the fast path; its cost is bounded by pixels and MAX_RECTS, not by spans. Is not: aware of events.
import { CATEGORIES, FAULT, WAIT, inkOn, packed, parseHex } from "../draw/palette";
import { Theme, rgbOf } from "../draw/theme";
import { Row } from "../model/row";
import { SpanKindNames, SpanStatus, Track } from "../model/schema";
import { Use, useOf } from "../model/exposure";
import { Store } from "../model/store";
import { Hatch } from "./hatch_paint";
import { Line } from "./timeline_layout";

export const MAX_RECTS = 2500;
const MAX_WORDS = 500;
const RECTS_PER_ROW = 250;
const SHADES = 32;
const PLAIN = new Float32Array(CATEGORIES.length).fill(1);
const COMM_TRACKS = new Set<number>([Track.channel, Track.fabric, Track.nic_tx, Track.nic_rx, Track.copy]);
// A summary of many lanes shows work; waiting only where there is nothing else.
const SUMMARY = PLAIN.map((_, cat) => (cat === WAIT ? 0.1 : 1));

export interface PaintStats {
  rects: number;
  words: number;
  pixelRows: number;
  pyramidRows: number;
}

export class Painter {
  private image: ImageData | null = null;
  private pixels = new Uint32Array(0);
  private busy = new Float32Array(0);
  private best = new Float32Array(0);
  private cat = new Uint8Array(0);
  private shades: Uint32Array[] = [];
  private grounds: number[] = [];
  stats: PaintStats = { rects: 0, words: 0, pixelRows: 0, pyramidRows: 0 };
  private hatch: Hatch;
  private ratio = 1;

  constructor(private store: Store) {
    this.hatch = new Hatch(store.exposure);
  }

  /** Reads the colours of a theme. */
  theme(theme: Theme): void {
    const ground = rgbOf(theme.ground);
    const raised = rgbOf(theme.raised);
    const band = ground.map((v, i) => v + (raised[i] - v) * 0.45) as [number, number, number];
    this.hatch.theme(theme);
    this.grounds = [packed(...ground), packed(...band), packed(...raised)];
    this.shades = [];
    for (const base of [ground, band, raised]) {
      for (const category of CATEGORIES) {
        const rgb = parseHex(category.color);
        const table = new Uint32Array(SHADES + 1);
        for (let s = 0; s <= SHADES; s++) {
          const f = s === 0 ? 0 : 0.22 + 0.78 * (s / SHADES);
          table[s] = packed(...(base.map((v, i) => v + (rgb[i] - v) * f) as [number, number, number]));
        }
        this.shades.push(table);
      }
    }
  }

  private size(width: number, height: number): void {
    if (this.image && this.image.width === width && this.image.height === height) return;
    this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.busy = new Float32Array(width);
    this.best = new Float32Array(width);
    this.cat = new Uint8Array(width);
  }

  /** One line of pixels at y, repeated h times; `share` divides the busy time of merged rows. */
  private scanline(rows: Row[], t0: number, ns: number, width: number, y: number, height: number, base: number, share: number): void {
    this.busy.fill(0);
    this.best.fill(0);
    this.cat.fill(0);
    for (const row of rows) {
      row.scan(t0, ns, width, this.busy, this.cat, this.best, rows.length > 1 ? SUMMARY : PLAIN);
      if (row.pyramid && row.pyramid.bucketNs <= ns) this.stats.pyramidRows += 1;
    }
    this.stats.pixelRows += 1;
    const start = y * width;
    const line = this.pixels.subarray(start, start + width);
    const offset = base * CATEGORIES.length;
    for (let x = 0; x < width; x++) {
      const busy = this.busy[x] / share;
      if (busy <= 0) line[x] = this.grounds[base];
      else line[x] = this.shades[offset + this.cat[x]][Math.max(1, Math.min(SHADES, Math.ceil(busy * SHADES)))];
    }
    for (let k = 1; k < height; k++) this.pixels.copyWithin(start + k * width, start, start + width);
  }

  /** Paints the lines between `top` and `top + height` (CSS pixels) for the time [t0, t1]. */
  paint(ctx: CanvasRenderingContext2D, lines: Line[], top: number, cssWidth: number, cssHeight: number, t0: number, t1: number, ratio: number, theme: Theme): void {
    const width = Math.max(1, Math.round(cssWidth * ratio));
    const height = Math.max(1, Math.round(cssHeight * ratio));
    this.size(width, height);
    this.stats = { rects: 0, words: 0, pixelRows: 0, pyramidRows: 0 };
    this.pixels.fill(this.grounds[0]);
    const ns = (t1 - t0) / width;
    this.ratio = ratio;
    this.hatch.begin(t0, ns, width, ratio);
    const exact: { row: Row; y: number; h: number; base: number }[] = [];
    for (const line of lines) {
      if (line.y + line.h <= top || line.y >= top + cssHeight || !(line.kind !== "rank" || line.merged)) continue;
      this.paintLine(line, top, height, width, t0, ns, ratio, exact);
    }
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.putImageData(this.image!, 0, 0);
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    for (const item of exact) this.rectangles(ctx, item.row, item.y, item.h, t0, (t1 - t0) / cssWidth, cssWidth, theme);
    this.rules(ctx, lines, top, cssWidth, cssHeight, theme);
  }

  private paintLine(line: Line, top: number, height: number, width: number, t0: number, ns: number, ratio: number, exact: { row: Row; y: number; h: number; base: number }[]): void {
    const base = line.kind === "node" ? 2 : line.band ? 1 : 0;
    const y0 = Math.round((line.y - top) * ratio);
    this.ground(y0, Math.round(line.h * ratio), width, height, this.grounds[base]);
    if (!line.rows.length) return;
    if (this.store.computes && line.merged && line.kind !== "node" && line.lanes[0].rank >= 0) {
      const [from, to] = [y0 + Math.round(2 * ratio), y0 + Math.round((line.h - 1) * ratio)];
      if (this.hatch.stack(this.pixels, line.lanes[0].rank, from, to, height)) return;
    }
    const parts = line.merged ? 1 : line.rows.length;
    const pad = line.merged ? 2 : 1;
    const part = (line.h - 2 * pad) / parts;
    for (let r = 0; r < parts; r++) {
      const rows = line.merged ? line.rows : [line.rows[r]];
      const cssY = line.y - top + pad + r * part;
      const rowH = Math.max(2, part - (parts > 1 ? 1 : 0));
      if (!line.merged && this.fewVisible(line.rows[r], t0, t0 + ns * width)) {
        exact.push({ row: line.rows[r], y: cssY, h: rowH, base });
        continue;
      }
      const from = Math.max(0, Math.round(cssY * ratio));
      const to = Math.min(height, Math.round((cssY + rowH) * ratio));
      if (to <= from) continue;
      this.scanline(rows, t0, ns, width, from, to - from, base, line.merged ? Math.max(1, line.lanes.length / 2) : 1);
      if (this.store.computes && line.kind === "lane" && COMM_TRACKS.has(line.lanes[0].track)) this.hatch.lane(this.pixels, this.busy, line.lanes[0].rank, from, to);
    }
  }

  private ground(y: number, h: number, width: number, height: number, color: number): void {
    const from = Math.max(0, y);
    const to = Math.min(height, y + h);
    if (to > from) this.pixels.fill(color, from * width, to * width);
  }

  private fewVisible(row: Row, t0: number, t1: number): boolean {
    const visible = row.after(t1) - row.first(t0);
    if (visible > RECTS_PER_ROW || this.stats.rects + visible > MAX_RECTS) return false;
    this.stats.rects += visible;
    return true;
  }

  private rectangles(ctx: CanvasRenderingContext2D, row: Row, y: number, h: number, t0: number, ns: number, width: number, theme: Theme): void {
    const t1 = t0 + ns * width;
    ctx.font = `${Math.min(10, h)}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    const lane = this.store.lanes[row.lane];
    const use = this.store.computes ? this.hatch.use(lane.rank) : undefined;
    const xAt = (t: number) => (t - t0) / ns;
    for (let i = row.first(t0); i < row.n && row.begin[i] < t1; i++) {
      const x0 = (row.begin[i] - t0) / ns;
      const x1 = (row.end[i] - t0) / ns;
      if (x1 < 0) continue;
      const left = Math.max(-2, x0);
      const w = Math.max(1, Math.min(width + 2, x1) - left);
      const hatch = use && useOf(lane, row, i) === Use.comm ? () => this.hatch.span(ctx, use, row.begin[i], row.end[i], xAt, y, h, this.ratio) : null;
      // What lies on another span hides what is written on that one.
      const seen = row.overlaps && i + 1 < row.n ? Math.min(w, xAt(row.begin[i + 1]) - left) : w;
      this.rectangle(ctx, row, i, left, y, w, h, seen, theme, hatch);
    }
  }

  private rectangle(ctx: CanvasRenderingContext2D, row: Row, i: number, x: number, y: number, w: number, h: number, seen: number, theme: Theme, hatch: (() => boolean) | null): void {
    const cat = row.cat[i];
    const color = CATEGORIES[cat].color;
    this.fill(ctx, cat, x, y, w > 3 ? w - 0.6 : w, h);
    const hatched = hatch !== null && hatch();
    const bad = row.status[i] === SpanStatus.failed || row.status[i] === SpanStatus.aborted;
    if (bad) this.strike(ctx, x, y, w, h, theme);
    if (seen < 26 || h < 8 || this.stats.words >= MAX_WORDS) return;
    this.stats.words += 1;
    const words = this.words(row, i);
    // Of a hatched span some stripes stay in sight.
    const room = Math.floor((seen * (hatched ? 0.6 : 1) - 6) / 5.4);
    if (room < 3) return;
    const text = words.length <= room ? words : words.slice(0, room - 1) + "…";
    const at = Math.max(x, 0) + 3;
    if (hatched) {
      // Words on stripes are not read: they get ground of their own.
      const wide = ctx.measureText(text).width + 6;
      ctx.fillStyle = theme.ground;
      ctx.fillRect(at - 3, y, wide, h);
      this.fill(ctx, cat, at - 3, y, wide, h);
    }
    ctx.fillStyle = cat === WAIT ? theme.ink : inkOn(color);
    ctx.fillText(text, at, y + h / 2 + 0.5);
  }

  private fill(ctx: CanvasRenderingContext2D, cat: number, x: number, y: number, w: number, h: number): void {
    ctx.globalAlpha = cat === WAIT ? 0.38 : 1;
    ctx.fillStyle = CATEGORIES[cat].color;
    ctx.fillRect(x, y, w, h);
    ctx.globalAlpha = 1;
  }

  private words(row: Row, i: number): string {
    const lane = this.store.lanes[row.lane];
    const wire = lane.track === Track.nic_tx || lane.track === Track.nic_rx;
    const arrow = lane.track === Track.nic_rx || row.cat[i] === WAIT ? "←" : "→";
    const peer = row.peer[i] >= 0 ? ` ${arrow} ${row.peer[i]}` : "";
    const step = row.step[i] >= 0 ? ` · step ${row.step[i]}` : "";
    return (wire ? peer.trim() || "segment" : SpanKindNames[row.kind[i]] + peer) + step;
  }

  private strike(ctx: CanvasRenderingContext2D, x: number, y: number, w: number, h: number, theme: Theme): void {
    ctx.strokeStyle = theme.ground;
    ctx.lineWidth = 1;
    ctx.beginPath();
    for (let k = x + 2; k < x + w; k += 5) {
      ctx.moveTo(k, y + h);
      ctx.lineTo(Math.min(x + w, k + h), y);
    }
    ctx.stroke();
    ctx.strokeStyle = CATEGORIES[FAULT].color;
    ctx.strokeRect(x + 0.5, y + 0.5, Math.max(1, w - 1), h - 1);
  }

  private rules(ctx: CanvasRenderingContext2D, lines: Line[], top: number, width: number, height: number, theme: Theme): void {
    ctx.fillStyle = theme.line;
    for (const line of lines) {
      if (line.kind === "lane" || line.y < top || line.y > top + height) continue;
      ctx.fillRect(0, line.y - top, width, 1);
    }
  }

  /** One line of pixels for everything: the strip that shows where one is. */
  strip(ctx: CanvasRenderingContext2D, rows: Row[], t0: number, t1: number, width: number, height: number): void {
    this.size(width, this.image?.height ?? 1);
    const kept = this.image!;
    const stats = this.stats;
    this.stats = { ...stats };
    const strip = new ImageData(width, height);
    this.image = strip;
    this.pixels = new Uint32Array(strip.data.buffer);
    this.scanline(rows, t0, (t1 - t0) / width, width, 0, height, 0, Math.max(1, rows.length * 0.5));
    ctx.putImageData(strip, 0, 0);
    this.image = kept;
    this.stats = stats;
    this.pixels = new Uint32Array(kept.data.buffer);
  }
}
