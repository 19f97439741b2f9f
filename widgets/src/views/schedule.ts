// The schedule: steps across, ranks down, what each rank does in each step, and the way a chunk takes.
//
// Is: a grid with a step-through. Is not: time; steps are those of the algorithm, the timeline has the clock.
import { fitCanvas, h } from "../draw/dom";
import { CATEGORIES, inkOn } from "../draw/palette";
import { Theme, calm, readTheme, watchTheme } from "../draw/theme";
import { Link } from "../model/link";
import { Ops } from "../model/ops";
import { BufferNames, Kind, KindNames, Track } from "../model/schema";
import { Session, ViewSpec } from "../model/session";
import { Store } from "../model/store";
import * as fmt from "../draw/format";
import { Frame, TableData } from "./frame";

const LEFT = 64;
const TOP = 24;
const MAX_RANKS = 256;
const MAX_STEPS = 1024;
const STEP_MS = 900;
const FIRST = [Kind.put, Kind.get, Kind.reduce, Kind.copy, Kind.compute, Kind.signal, Kind.wait, Kind.flush] as number[];

export class ScheduleView {
  readonly frame: Frame;
  private ops: Ops;
  private data: any;
  private cells = new Map<number, number[]>();
  private canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": "schedule: steps across, ranks down; arrow keys choose a cell, Enter follows its chunk" });
  private box = h("div", { style: "overflow:auto;max-height:520px" });
  private slider = h("input", { type: "range", min: "-1", step: "1", value: "-1", "aria-label": "step", style: "width:150px" });
  private theme: Theme;
  private link: Link;
  private ranks: number;
  private steps: number;
  private unit: string; // what steps are: of a timetable ticks, which are no hops
  private cw = 40;
  private ch = 26;
  private step = -1;
  private phase = 0;
  private playing = 0;
  private path: Set<number> | null = null;
  private chosen: [number, number] | null = null;
  private now = new Map<number, number>();
  private queued = 0;
  private playButton: HTMLButtonElement;

  constructor(readonly session: Session, readonly store: Store | undefined, readonly spec: ViewSpec, readonly parent: HTMLElement, readonly signal: AbortSignal) {
    this.data = session.spec.data.schedule;
    this.ops = new Ops(this.data);
    this.unit = this.data.timetable ? "tick" : "step";
    this.ranks = Math.min(MAX_RANKS, this.data.shown_ranks);
    this.steps = Math.min(MAX_STEPS, this.ops.steps);
    for (let i = 0; i < this.ops.n; i++) {
      const key = this.ops.c.rank[i] * 65536 + this.ops.c.step[i];
      if (this.ops.c.step[i] < 0) continue;
      if (!this.cells.has(key)) this.cells.set(key, []);
      this.cells.get(key)!.push(i);
    }
    this.frame = new Frame(spec.title ?? "Schedule", "schedule: steps by ranks");
    const d = this.data;
    this.frame.subtitle([d.algorithm, d.collective, `${d.n_ranks} ranks`, `${this.ops.steps} ${this.unit}s`, d.n_channels > 1 ? `${d.n_channels} channels` : "", d.nbytes ? fmt.bytes(d.nbytes) : "", `${fmt.count(this.ops.n)} ops`].filter(Boolean).join(" · "));
    const small = this.ranks < d.n_ranks || this.steps < this.ops.steps;
    this.frame.badges(small ? [{ text: `first ${this.ranks} ranks, ${this.steps} steps shown` }] : []);
    this.slider.max = String(this.steps - 1);
    this.frame.button("◀", "One step back", () => this.goto(this.step - 1));
    this.playButton = this.frame.button("▶ play", "Go through the steps", () => this.play());
    this.frame.button("▶", "One step on", () => this.goto(this.step + 1));
    this.frame.control(this.slider);
    this.frame.withTable("the schedule", () => this.table());
    this.theme = readTheme(parent);
    this.link = new Link(session.spec.link, (change) => change.cursor !== undefined && this.follow(change.cursor));
    this.box.append(this.canvas);
    this.frame.body.append(this.box);
    this.legend();
    this.listen();
  }

  private legend(): void {
    const kinds = new Set<number>();
    for (let i = 0; i < this.ops.n; i++) kinds.add(this.ops.c.kind[i]);
    const color: Record<number, number> = { [Kind.put]: 0, [Kind.get]: 1, [Kind.signal]: 2, [Kind.wait]: 3, [Kind.flush]: 3, [Kind.copy]: 4, [Kind.reduce]: 5, [Kind.compute]: 6 };
    this.frame.legend(new Set([...kinds].map((k) => color[k])), [h("span", {}, "the number is the chunk; click a cell to follow it"), ...this.why()]);
  }

  /** The planner's argument: its first reason, and the others, one a line, when asked for. */
  private why(): HTMLElement[] {
    const [first, ...others] = this.data.reasons ?? [];
    if (first === undefined) return [];
    if (!others.length) return [h("span", { class: "ccl-note ccl-why" }, "why: " + first)];
    const list = h("ul", {}, ...others.map((reason: string) => h("li", {}, reason)));
    return [h("details", { class: "ccl-note ccl-why" }, h("summary", {}, `why: ${first} (and ${others.length} more)`), list)];
  }

  private listen(): void {
    watchTheme(this.parent, () => this.redraw(), this.signal);
    const resize = new ResizeObserver(() => this.redraw());
    resize.observe(this.frame.body);
    this.signal.addEventListener("abort", () => {
      resize.disconnect();
      this.link.close();
      this.playing = 0;
      cancelAnimationFrame(this.queued);
      this.queued = -1;
    });
    const options = { signal: this.signal };
    this.slider.addEventListener("input", () => this.goto(Number(this.slider.value)), options);
    this.canvas.addEventListener("pointermove", (event) => this.move(event), options);
    this.canvas.addEventListener("pointerleave", () => this.frame.tip(null), options);
    this.canvas.addEventListener("click", (event) => this.click(this.cellAt(event)), options);
    this.frame.root.addEventListener("keydown", (event) => this.key(event), options);
    this.redraw();
  }

  private redraw(): void {
    if (this.queued === 0) this.queued = requestAnimationFrame(() => this.draw());
  }

  private key(event: KeyboardEvent): void {
    if (event.target !== this.canvas || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key !== "Tab") event.stopPropagation();
    const [step, rank] = this.chosen ?? [Math.max(0, this.step), 0];
    const moves: Record<string, [number, number]> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const move = moves[event.key];
    if (move) {
      event.preventDefault();
      this.chosen = [Math.min(this.steps - 1, Math.max(0, step + move[0])), Math.min(this.ranks - 1, Math.max(0, rank + move[1]))];
      this.frame.say(`${this.unit} ${this.chosen[0]}, rank ${this.chosen[1]}: ${this.opsOf(...this.chosen).map((i) => this.ops.words(i)).join("; ") || "nothing"}`);
      this.redraw();
    } else if (event.key === "Enter") this.click(this.chosen);
    else if (event.key === "Escape") this.click(null);
    else if (event.key === " ") {
      event.preventDefault();
      this.play();
    }
  }

  private opsOf(step: number, rank: number): number[] {
    return this.cells.get(rank * 65536 + step) ?? [];
  }

  /** What a cell shows first: the op that moves or makes data. */
  private mainOp(list: number[]): number {
    return list.reduce((best, i) => (FIRST.indexOf(this.ops.c.kind[i]) < FIRST.indexOf(this.ops.c.kind[best]) ? i : best), list[0]);
  }

  goto(step: number): void {
    this.step = Math.max(-1, Math.min(this.steps - 1, step));
    this.phase = this.playing ? 0 : 1;
    this.slider.value = String(this.step);
    this.frame.say(this.step < 0 ? `all ${this.unit}s` : `${this.unit} ${this.step}`);
    this.redraw();
  }

  play(): void {
    if (this.playing) {
      this.playing = 0;
      this.playButton.textContent = "▶ play";
      return;
    }
    this.playing = performance.now();
    this.playButton.textContent = "❚❚ pause";
    this.goto(this.step >= this.steps - 1 ? 0 : Math.max(0, this.step));
    requestAnimationFrame(() => this.tick());
  }

  private tick(): void {
    if (!this.playing || this.signal.aborted) return;
    const f = (performance.now() - this.playing) / STEP_MS;
    this.phase = calm() ? 1 : Math.min(1, f * 1.25);
    if (f >= 1) {
      this.playing = performance.now();
      if (this.step >= this.steps - 1) return this.play();
      this.goto(this.step + 1);
    }
    this.redraw();
    requestAnimationFrame(() => this.tick());
  }

  /** The step each rank is in at the linked cursor's time. */
  private follow(t: number | null | undefined): void {
    this.now.clear();
    if (typeof t === "number" && this.store) {
      for (const lane of this.store.lanes) {
        if (lane.track !== Track.channel) continue;
        for (const row of lane.rows) {
          const i = row.at(t, 0);
          if (i >= 0 && row.step[i] >= 0) this.now.set(lane.rank, row.step[i]);
        }
      }
    }
    this.redraw();
  }

  private draw(): void {
    this.queued = 0;
    this.theme = readTheme(this.parent);
    const space = Math.max(240, this.box.clientWidth) - LEFT - 10;
    this.cw = Math.max(14, Math.min(76, Math.floor(space / Math.max(1, this.steps))));
    this.ch = Math.max(14, Math.min(34, Math.floor(430 / Math.max(1, this.ranks))));
    const width = LEFT + this.cw * this.steps + 10;
    const height = TOP + this.ch * this.ranks + 8;
    const ratio = fitCanvas(this.canvas, width, height);
    const ctx = this.canvas.getContext("2d")!;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = this.theme.ground;
    ctx.fillRect(0, 0, width, height);
    ctx.textBaseline = "middle";
    this.axes(ctx);
    for (const [key, list] of this.cells) {
      const [rank, step] = [Math.floor(key / 65536), key % 65536];
      if (rank < this.ranks && step < this.steps) this.cell(ctx, step, rank, list);
    }
    if (this.path) for (const i of this.path) this.arrow(ctx, i, 1, 0.9);
    else if (this.step >= 0) this.stepArrows(ctx);
    for (const [rank, step] of this.now) this.ring(ctx, step, rank, this.theme.ink);
    if (this.chosen) this.ring(ctx, ...this.chosen, this.theme.accent);
  }

  private axes(ctx: CanvasRenderingContext2D): void {
    ctx.font = "11px system-ui, sans-serif";
    const every = Math.max(1, Math.ceil(26 / this.cw));
    ctx.textAlign = "center";
    for (let step = 0; step < this.steps; step++) {
      if (step === this.step) {
        ctx.fillStyle = this.theme.raised;
        ctx.fillRect(LEFT + step * this.cw, 0, this.cw, TOP + this.ch * this.ranks);
      }
      ctx.fillStyle = step === this.step ? this.theme.ink : this.theme.faint;
      if (step % every === 0) ctx.fillText(String(step), LEFT + (step + 0.5) * this.cw, TOP / 2);
    }
    ctx.textAlign = "left";
    ctx.fillStyle = this.theme.faint;
    ctx.fillText(this.unit, 12, TOP / 2);
    ctx.fillStyle = this.theme.ink;
    for (let rank = 0; rank < this.ranks; rank++) ctx.fillText(`rank ${rank}`, 12, TOP + (rank + 0.5) * this.ch);
  }

  private cell(ctx: CanvasRenderingContext2D, step: number, rank: number, list: number[]): void {
    const c = this.ops.c;
    const [x, y] = [LEFT + step * this.cw + 1, TOP + rank * this.ch + 1];
    const [w, hh] = [this.cw - 2, this.ch - 2];
    const onPath = this.path ? list.filter((i) => this.path!.has(i)) : [];
    const main = this.mainOp(onPath.length ? onPath : list);
    const lit = this.path ? list.some((i) => this.path!.has(i)) : this.step < 0 || this.step === step;
    ctx.globalAlpha = lit ? 1 : 0.22;
    const color = CATEGORIES[this.category(c.kind[main])].color;
    const dim = c.kind[main] === Kind.wait || c.kind[main] === Kind.flush;
    ctx.fillStyle = dim ? this.theme.raised : color;
    ctx.beginPath();
    ctx.roundRect(x, y, w, hh, Math.min(4, w / 4));
    ctx.fill();
    const others = [...new Set(list.filter((i) => i !== main).map((i) => this.category(c.kind[i])))].filter((k) => k !== this.category(c.kind[main]));
    others.forEach((k, n) => {
      ctx.fillStyle = CATEGORIES[k].color;
      const bar = (w - 6) / others.length;
      ctx.fillRect(x + 3 + n * bar, y + hh - 5, bar - 1, 3);
    });
    if (w >= 13 && this.ops.writes(main)) {
      ctx.fillStyle = dim ? this.theme.ink : inkOn(color);
      ctx.textAlign = "center";
      ctx.font = `600 ${Math.min(11, this.ch - 6)}px system-ui, sans-serif`;
      const last = c.dst_chunk[main] + c.n_chunks[main] - 1;
      const chunk = c.n_chunks[main] > 1 ? `${c.dst_chunk[main]}–${last}` : String(c.dst_chunk[main]);
      const texts = [`${KindNames[c.kind[main]]} ${chunk}`, chunk, String(c.dst_chunk[main])];
      const text = texts.find((each) => ctx.measureText(each).width < w - 4) ?? "";
      ctx.fillText(text, x + w / 2, y + hh / 2 - (others.length ? 1.5 : 0));
      ctx.textAlign = "left";
    }
    ctx.globalAlpha = 1;
  }

  private category(kind: number): number {
    return ({ [Kind.put]: 0, [Kind.get]: 1, [Kind.signal]: 2, [Kind.wait]: 3, [Kind.flush]: 3, [Kind.copy]: 4, [Kind.reduce]: 5, [Kind.compute]: 6 } as Record<number, number>)[kind] ?? 3;
  }

  private ring(ctx: CanvasRenderingContext2D, step: number, rank: number, color: string): void {
    if (step >= this.steps || rank >= this.ranks) return;
    ctx.strokeStyle = color;
    ctx.lineWidth = 2;
    ctx.beginPath();
    ctx.roundRect(LEFT + step * this.cw + 0.5, TOP + rank * this.ch + 0.5, this.cw - 1, this.ch - 1, 4);
    ctx.stroke();
  }

  private stepArrows(ctx: CanvasRenderingContext2D): void {
    for (let rank = 0; rank < this.ranks; rank++) for (const i of this.opsOf(this.step, rank)) this.arrow(ctx, i, this.phase, 0.8);
  }

  /** From the cell of a put to the row of its peer, drawn up to `phase` (0 to 1). */
  private arrow(ctx: CanvasRenderingContext2D, i: number, phase: number, alpha: number): void {
    const c = this.ops.c;
    if (c.kind[i] !== Kind.put && c.kind[i] !== Kind.get) return;
    const [from, to] = c.kind[i] === Kind.put ? [c.rank[i], c.peer[i]] : [c.peer[i], c.rank[i]];
    if (from === to || from >= this.ranks || to >= this.ranks || from < 0 || to < 0) return;
    const x = LEFT + (c.step[i] + 1) * this.cw - Math.min(8, this.cw * 0.2);
    const [y0, y1] = [TOP + (from + 0.5) * this.ch, TOP + (to + 0.5) * this.ch];
    const bulge = Math.min(this.cw * 0.42, 8 + Math.abs(to - from) * 3);
    const at = (f: number): [number, number] => [x + 4 * bulge * f * (1 - f), y0 + (y1 - y0) * f];
    ctx.globalAlpha = alpha;
    ctx.strokeStyle = this.theme.ink;
    ctx.lineWidth = 1.4;
    ctx.beginPath();
    ctx.moveTo(...at(0));
    for (let f = 0.05; f <= phase + 1e-9; f += 0.05) ctx.lineTo(...at(f));
    ctx.stroke();
    const [hx, hy] = at(phase);
    ctx.fillStyle = this.theme.ink;
    ctx.beginPath();
    if (phase < 1) ctx.arc(hx, hy, 3.2, 0, 7);
    else {
      const turn = Math.atan2(y1 - y0, -4 * bulge);
      for (const [k, side] of [[0, 0], [7, 2.6], [7, -2.6]]) ctx.lineTo(hx - k * Math.cos(turn) - side * Math.sin(turn), hy - k * Math.sin(turn) + side * Math.cos(turn));
    }
    ctx.fill();
    ctx.globalAlpha = 1;
  }

  private cellAt(event: MouseEvent): [number, number] | null {
    const box = this.canvas.getBoundingClientRect();
    const step = Math.floor((event.clientX - box.left - LEFT) / this.cw);
    const rank = Math.floor((event.clientY - box.top - TOP) / this.ch);
    return step >= 0 && step < this.steps && rank >= 0 && rank < this.ranks ? [step, rank] : null;
  }

  private move(event: PointerEvent): void {
    const at = this.cellAt(event);
    const list = at ? this.opsOf(...at) : [];
    if (!at || !list.length) return this.frame.tip(null);
    const rows = list.slice(0, 12).map((i) => `<dt>op ${this.ops.op_id[i]}</dt><dd>${fmt.escape(this.ops.words(i))}${this.data.n_channels > 1 ? ` · channel ${this.ops.c.channel[i]}` : ""}</dd>`);
    this.frame.tip(`<b>step ${at[0]} · rank ${at[1]}</b><dl>${rows.join("")}</dl>${list.length > 12 ? `and ${list.length - 12} more` : ""}`, event.clientX, event.clientY);
  }

  private click(at: [number, number] | null): void {
    const list = at ? this.opsOf(...at) : [];
    const same = at && this.chosen && this.path && at[0] === this.chosen[0] && at[1] === this.chosen[1];
    if (!at || !list.length || same) {
      this.path = null;
      this.chosen = null;
      this.session.select({});
      this.redraw();
      return;
    }
    const main = this.mainOp(list);
    this.chosen = at;
    this.path = this.ops.path(main);
    const op = this.ops.op_id[main];
    this.session.select({ source: this.store?.id ?? null, op_id: op, rank: at[1] });
    this.frame.code(`schedule.describe(${op})`);
    this.frame.say(`${this.ops.words(main)}; its data passes through ${this.path.size} ops`);
    this.redraw();
  }

  private table(): TableData {
    const rows: (string | number)[][] = [];
    for (let p = 0; p < Math.min(500, this.ops.n); p++) {
      const i = this.ops.order[p];
      rows.push([this.ops.op_id[i], this.ops.c.step[i], this.ops.c.rank[i], this.ops.c.channel[i], this.ops.words(i)]);
    }
    return { head: ["op", "step", "rank", "channel", `what (${BufferNames.join(", ")})`], rows };
  }
}
