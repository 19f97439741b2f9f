// The timeline: lanes per rank (channels, compute, copies, NICs), a million spans, live or from a file.
//
// Is: the state of one timeline (visible range, hover, selection, marks) and when what is drawn. Is not: how spans are
// painted (timeline_paint), what keys and mouse do (timeline_input), where lanes stand (timeline_layout).
// Invariants: hover, pan, zoom and select never ask the kernel; times are ns after the source's origin.
import { fitCanvas, h } from "../draw/dom";
import * as fmt from "../draw/format";
import { Theme, readTheme, watchTheme } from "../draw/theme";
import { Link, Linked } from "../model/link";
import { Row } from "../model/row";
import { Track, TrackNames } from "../model/schema";
import { Session, ViewSpec } from "../model/session";
import { Store } from "../model/store";
import { Frame, facts, exposedKey, sourceBadges } from "./frame";
import { Hit, findHit, parseSearch } from "./search";
import { FLAG_H, Flag, drawFlags, drawLines, drawMark, flagAt, flagMeasure, layoutFlags } from "./marks_paint";
import { describe, laneFacts, selectionPython, stackFacts } from "./timeline_facts";
import { attachInput } from "./timeline_input";
import { GUTTER, Layout, Line } from "./timeline_layout";
import { Painter } from "./timeline_paint";
import { savePng } from "./timeline_png";
import { Words } from "./timeline_words";

const RULER_H = 22;
const STRIP_H = 16;
const FLAG_ROWS = 2;

export class Timeline {
  readonly frame: Frame;
  readonly layout: Layout;
  readonly painter: Painter;
  t0 = 0;
  t1 = 1;
  follow: boolean;
  hover: Hit | null = null;
  cursor: number | null = null;
  drag: [number, number] | null = null;
  marks: number[] = [];
  picked = new Set<number>();
  found: Hit | null = null;
  width = 600;
  drawMs: number[] = [];
  /** Flags of faults and recovery as they stand now. */
  flags: Flag[] = [];
  readonly scroll = h("div", { class: "tl-scroll", tabindex: "0", role: "application", "aria-label": "timeline of spans; press ? for keys" });
  readonly top = h("canvas", {});
  readonly words: Words;
  private content = h("div", { class: "tl-content" });
  private gutter = h("div", { class: "tl-gutter", style: `width:${GUTTER}px` });
  private base = h("canvas", {});
  private over = h("canvas", {});
  private stripCanvas = document.createElement("canvas");
  private stripFor = "";
  private corner = h("div", { class: "tl-corner", style: `width:${GUTTER}px` });
  private search = h("input", { type: "search", placeholder: "search  /", "aria-label": "search spans, such as reduce rank:3 step:4" });
  private followButton: HTMLButtonElement | null = null;
  private foldButton: HTMLButtonElement | null = null;
  private theme: Theme;
  private link: Link;
  private touched = false;
  private queued = 0;
  private measured = 0;
  private dirty = 0;
  private height: number;

  constructor(readonly session: Session, readonly store: Store, readonly spec: ViewSpec, readonly parent: HTMLElement, readonly signal: AbortSignal) {
    this.frame = new Frame(spec.title ?? "Timeline", spec.title ?? "Timeline");
    this.layout = new Layout(store, !!spec.folded);
    this.painter = new Painter(store);
    this.follow = store.live;
    this.height = spec.height ?? 0;
    this.theme = readTheme(parent);
    this.words = new Words(this);
    this.build();
    this.link = new Link(spec.link ?? session.spec.link, (change) => this.onLink(change));
    if (this.link.state.range && !store.live) {
      [this.t0, this.t1] = this.link.state.range;
      this.touched = true;
    }
    this.retheme();
    const stop = store.listen(() => this.onData());
    watchTheme(this.parent, () => this.retheme(), signal);
    const resize = new ResizeObserver(() => {
      this.measured = this.scroll.clientWidth;
      this.redraw(7);
    });
    resize.observe(this.scroll);
    signal.addEventListener("abort", () => {
      stop();
      resize.disconnect();
      this.link.close();
      cancelAnimationFrame(this.queued);
      this.queued = -1;
    });
    attachInput(this);
    (this.frame.root as any).cclTimeline = this;
    this.onData();
  }

  private build(): void {
    const frame = this.frame;
    const sticky = h("div", { class: "tl-sticky" }, this.base, this.over);
    sticky.style.marginLeft = this.base.style.left = `${GUTTER}px`;
    this.base.style.left = this.over.style.left = "0";
    this.over.style.pointerEvents = "none";
    this.content.append(sticky, this.gutter);
    this.scroll.append(this.content);
    frame.body.append(h("div", { class: "tl-top" }, this.corner, this.top), this.scroll);
    frame.control(this.search);
    this.search.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") this.find(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") this.scroll.focus();
    });
    if (this.store.live) this.followButton = frame.button("Live", "Follow the newest spans", () => this.setFollow(!this.follow), { "aria-pressed": "true" });
    frame.button("−", "Zoom out (S)", () => this.zoom(1.6));
    frame.button("+", "Zoom in (W)", () => this.zoom(1 / 1.6));
    frame.button("Fit", "Fit everything (F)", () => this.fit());
    this.foldButton = frame.button("Fold", "Fold every rank into one row (R)", () => this.fold(), { "aria-pressed": "false" });
    frame.button("PNG", "Save this picture", () => this.png());
    frame.withTable("the timeline", () => laneFacts(this.store, this.store.computes ? this.words.parts() : []));
    frame.help([
      ["W S", "zoom in, out"], ["A D", "pan left, right"], ["F", "fit everything"], ["R", "a row per rank: fold or open all"], ["M", "set or clear a mark at the cursor"], ["E", "go to the next fault or recovery"],
      ["/", "search: reduce rank:3 step:4"], ["Enter", "next hit"], ["↑ ↓", "scroll lanes"], ["Esc", "clear the selection"],
      ["Ctrl wheel", "zoom at the pointer (after focus, without Ctrl)"], ["Shift drag", "pan"], ["drag", "select a range; the selection is a Trace"],
    ]);
  }

  private retheme(): void {
    this.theme = readTheme(this.parent);
    this.painter.theme(this.theme);
    this.stripFor = "";
    this.redraw(7);
  }

  private onLink(change: Linked): void {
    if (change.range) {
      [this.t0, this.t1] = change.range;
      this.touched = true;
      this.redraw(3);
    }
    if (change.cursor !== undefined) {
      this.cursor = change.cursor;
      this.redraw(2);
    }
  }

  private onData(): void {
    const meta = this.store.meta;
    const words = [meta.algorithm, meta.collective, meta.nbytes ? fmt.bytes(meta.nbytes) : "", meta.dtype, meta.time_us ? fmt.time(meta.time_us * 1e3) : ""];
    this.frame.subtitle(`${words.filter(Boolean).join(" · ")}${words.some(Boolean) ? " · " : ""}${fmt.count(this.store.spans)} spans`);
    this.store.exposure.refresh();
    this.words.update();
    this.frame.badges(sourceBadges(meta, this.store.drops, this.store.live));
    this.frame.legend(this.store.categories(), this.store.computes ? [exposedKey()] : []);
    const marks = this.store.faults.shown().length;
    this.scroll.setAttribute("aria-label", `timeline of spans${marks ? `; ${marks} marks of faults and recovery, E goes to the next` : ""}; press ? for keys`);
    if (this.follow) this.followEnd();
    else if (!this.touched) this.fit(false);
    this.frame.fillTable();
    this.redraw(7);
  }

  private followEnd(): void {
    const end = Math.max(this.store.end, this.store.faults.end());
    const recent = Math.min(this.spec.window_ns ?? 2e9, Math.max(1e5, (end - this.store.burst) * 1.03));
    const window = this.touched ? this.t1 - this.t0 : recent;
    this.setRange(end - window * 0.985, end + window * 0.015, true);
  }

  /** Folds every rank into one row, or opens all. */
  fold(on = !this.layout.allFolded): void {
    this.layout.foldAll(on);
    this.redraw(7);
  }

  setFollow(on: boolean): void {
    this.follow = on;
    this.followButton?.setAttribute("aria-pressed", String(on));
    if (on) this.followEnd();
  }

  /** The end of all time there is: of every source of this widget, so that two traces share one axis. */
  span(): number {
    let end = 1;
    for (const store of this.session.stores.values()) end = Math.max(end, store.end, store.faults.end());
    return end;
  }

  /** Shows [t0, t1] here and in the views linked with this one. */
  setRange(t0: number, t1: number, following = false): void {
    const span = this.span();
    const width = Math.min(Math.max(t1 - t0, 8), span * 4);
    const middle = Math.min(Math.max((t0 + t1) / 2, -width * 0.45), span + width * 0.45);
    this.t0 = middle - width / 2;
    this.t1 = middle + width / 2;
    if (!following) {
      this.touched = true;
      if (this.follow) this.setFollow(false);
    }
    this.link?.tell({ range: [this.t0, this.t1] });
    this.redraw(3);
  }

  fit(by_user = true): void {
    const begin = this.store.live ? this.store.begin() : 0;
    const span = Math.max(1, this.span() - begin);
    this.setRange(begin - span * 0.01, begin + span * 1.01, !by_user);
  }

  zoom(factor: number, at: number | null = null): void {
    const t = at ?? this.cursor ?? (this.t0 + this.t1) / 2;
    const pivot = t >= this.t0 && t <= this.t1 ? t : (this.t0 + this.t1) / 2;
    this.setRange(pivot - (pivot - this.t0) * factor, pivot + (this.t1 - pivot) * factor);
  }

  pan(share: number): void {
    const d = (this.t1 - this.t0) * share;
    this.setRange(this.t0 + d, this.t1 + d);
  }

  /** What has to be drawn again: 1 spans, 2 overlay, 4 labels. */
  redraw(what: number): void {
    if (this.queued < 0) return;
    this.dirty |= what;
    if (!this.queued) this.queued = requestAnimationFrame(() => this.draw());
  }

  timeAt(x: number): number {
    return this.t0 + (x / this.width) * (this.t1 - this.t0);
  }

  xAt(t: number): number {
    return ((t - this.t0) / (this.t1 - this.t0)) * this.width;
  }

  private draw(): void {
    const began = performance.now();
    this.queued = 0;
    const what = this.dirty;
    this.dirty = 0;
    const fresh = this.layout.refresh();
    const width = Math.max(80, (this.measured || 700) - GUTTER);
    this.width = width;
    this.foldButton?.setAttribute("aria-pressed", String(this.layout.allFolded));
    const wanted = this.height || Math.min(Math.max(this.layout.height, 60), this.spec.max_height ?? 520);
    if (fresh || what & 4) {
      this.scroll.style.height = `${wanted}px`;
      this.content.style.height = `${Math.max(this.layout.height, wanted)}px`;
    }
    const height = wanted;
    const top = this.scroll.scrollTop;
    if (what & 4 || fresh) this.layout.labels(this.gutter, top - 40, top + height + 40, this.picked, (line, event) => this.clickLabel(line, event));
    if (what & 5 || fresh) {
      const ratio = fitCanvas(this.base, width, height);
      this.painter.paint(this.base.getContext("2d")!, this.layout.lines, top, width, height, this.t0, this.t1, ratio, this.theme);
      this.drawTop(width);
    }
    this.drawOver(width, height, top);
    this.drawMs.push(performance.now() - began);
    if (this.drawMs.length > 4096) this.drawMs.splice(0, 2048);
  }

  private drawTop(width: number): void {
    const marks = this.store.faults.shown();
    const height = STRIP_H + RULER_H + (marks.length ? FLAG_ROWS * FLAG_H + 2 : 0);
    const ratio = fitCanvas(this.top, width, height);
    const ctx = this.top.getContext("2d")!;
    const theme = this.theme;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = theme.ground;
    ctx.fillRect(0, 0, width, height);
    this.drawStrip(ctx, width);
    ctx.font = "11px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    for (const tick of fmt.ticks(this.t0, this.t1, width / 110)) {
      const x = this.xAt(tick.t);
      ctx.fillStyle = theme.line;
      ctx.fillRect(x, STRIP_H + RULER_H - 6, 1, 6);
      ctx.fillStyle = theme.faint;
      const w = ctx.measureText(tick.label).width;
      if (x + 3 + w < width) ctx.fillText(tick.label, x + 4, STRIP_H + RULER_H / 2 + 1);
    }
    ctx.fillStyle = theme.line;
    ctx.fillRect(0, STRIP_H + RULER_H - 1, width, 1);
    this.flags = layoutFlags(marks, (t) => this.xAt(t), width, FLAG_ROWS, flagMeasure(ctx));
    drawLines(ctx, marks, (t) => this.xAt(t), 0, width, STRIP_H + RULER_H, height);
    drawFlags(ctx, this.flags, STRIP_H + RULER_H + 2);
    const end = this.store.end;
    this.corner.textContent = end ? `${fmt.time(this.t1 - this.t0)} shown` : "waiting for spans";
  }

  /** Where one is in the whole: the busy share of everything, and the visible part. */
  private drawStrip(ctx: CanvasRenderingContext2D, width: number): void {
    const end = this.span();
    const key = `${width}/${this.store.live ? Math.floor(this.store.spans / 5000) : this.store.spans}/${this.theme.dark}/${end}`;
    if (this.stripFor !== key) {
      this.stripFor = key;
      this.stripCanvas.width = Math.max(1, Math.round(width));
      this.stripCanvas.height = STRIP_H - 4;
      const rows = this.store.lanes.flatMap((lane) => (lane.track === Track.channel ? lane.rows : []));
      const all = rows.length ? rows : this.store.lanes.flatMap((lane) => lane.rows);
      this.painter.strip(this.stripCanvas.getContext("2d")!, all, 0, end, this.stripCanvas.width, STRIP_H - 4);
    }
    ctx.globalAlpha = 0.55;
    ctx.drawImage(this.stripCanvas, 0, 2, width, STRIP_H - 4);
    ctx.globalAlpha = 1;
    const x0 = Math.max(0, (this.t0 / end) * width);
    const x1 = Math.min(width, (this.t1 / end) * width);
    ctx.strokeStyle = this.theme.accent;
    ctx.lineWidth = 1.5;
    ctx.strokeRect(x0 + 1, 1.5, Math.max(3, x1 - x0 - 2), STRIP_H - 3);
  }

  private drawOver(width: number, height: number, top: number): void {
    const ratio = fitCanvas(this.over, width, height);
    const ctx = this.over.getContext("2d")!;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, width, height);
    if (this.drag) {
      const [a, b] = [this.xAt(Math.min(...this.drag)), this.xAt(Math.max(...this.drag))];
      ctx.fillStyle = this.theme.accent;
      ctx.globalAlpha = 0.14;
      ctx.fillRect(a, 0, b - a, height);
      ctx.globalAlpha = 1;
      ctx.fillRect(a, 0, 1, height);
      ctx.fillRect(b, 0, 1, height);
    }
    drawLines(ctx, this.store.faults.shown(), (t) => this.xAt(t), 0, width, 0, height);
    this.marks.forEach((t, k) => drawMark(ctx, this.xAt(t), width, height, this.theme.accent, `M${k + 1} ${fmt.time(t)}`));
    this.outline(ctx, this.found, top, this.theme.accent, 2);
    this.outline(ctx, this.hover, top, this.theme.ink, 1.2);
    if (this.cursor !== null && this.cursor >= this.t0 && this.cursor <= this.t1) {
      ctx.fillStyle = this.theme.ink;
      ctx.globalAlpha = 0.5;
      ctx.fillRect(this.xAt(this.cursor), 0, 1, height);
      ctx.globalAlpha = 1;
    }
  }

  private outline(ctx: CanvasRenderingContext2D, hit: Hit | null, top: number, color: string, lineWidth: number): void {
    if (!hit || hit.i >= hit.row.n) return;
    const line = this.layout.lines.find((each) => each.lanes.includes(hit.lane) && (each.kind === "lane" || (each.merged && each.kind !== "stack")));
    if (!line) return;
    const x0 = Math.max(-3, this.xAt(hit.row.begin[hit.i]));
    const x1 = Math.min(this.width + 3, this.xAt(hit.row.end[hit.i]));
    const parts = line.merged ? 1 : line.rows.length;
    const part = (line.h - 2) / parts;
    const y = line.y - top + 1 + (line.merged ? 0 : line.rows.indexOf(hit.row)) * part;
    ctx.strokeStyle = color;
    ctx.lineWidth = lineWidth;
    ctx.strokeRect(x0 - 0.5, y, Math.max(2, x1 - x0), part - 0.5);
  }

  /** The span under a point of the lanes (CSS pixels from the top left of the canvas). */
  hit(x: number, y: number): Hit | null {
    const line = this.layout.lineAt(y + this.scroll.scrollTop);
    if (!line || !line.rows.length) return null;
    const t = this.timeAt(x);
    const slack = ((this.t1 - this.t0) / this.width) * 3;
    let rows: Row[] = line.rows;
    if (!line.merged && rows.length > 1) {
      const r = Math.floor((y + this.scroll.scrollTop - line.y - 1) / ((line.h - 2) / rows.length));
      rows = [rows[Math.max(0, Math.min(rows.length - 1, r))]];
    }
    for (const row of rows) {
      const i = row.at(t, slack);
      if (i >= 0) return { lane: this.store.lanes[row.lane], row, i, t: row.begin[i] };
    }
    return null;
  }

  /** The rank whose time is stacked at this height of the lanes; null elsewhere. */
  rankAt(y: number): number | null {
    const line = this.store.computes ? this.layout.lineAt(y + this.scroll.scrollTop) : null;
    return line && line.merged && line.kind !== "node" ? line.lanes[0].rank : null;
  }

  setHover(hit: Hit | null, x: number, y: number, t: number | null, rank: number | null = null): void {
    this.hover = hit;
    this.cursor = t;
    this.link.tell({ cursor: t });
    const told = hit ? describe(this.store, hit) : rank !== null && t !== null ? stackFacts(this.store, rank, t) : null;
    this.frame.tip(told && facts(told.title, told.pairs), x, y);
    this.redraw(2);
  }

  private clickLabel(line: Line, event: MouseEvent): void {
    if (line.kind !== "lane") {
      this.layout.toggle(line.key);
      this.redraw(7);
      queueMicrotask(() => requestAnimationFrame(() => (this.gutter.querySelector(`[data-key=${line.key}]`) as HTMLElement)?.focus()));
      return;
    }
    const id = line.lanes[0].id;
    if (!event.shiftKey && !(event.ctrlKey || event.metaKey)) this.picked = new Set(this.picked.has(id) && this.picked.size === 1 ? [] : [id]);
    else if (!this.picked.delete(id)) this.picked.add(id);
    this.commitSelection();
    this.redraw(4);
  }

  /** Leaves range and lanes as `.selection`, and shows the Python for it. */
  commitSelection(): void {
    const name = this.session.spec.name ?? "trace";
    const range = this.drag ? [Math.min(...this.drag), Math.max(...this.drag)] : null;
    this.session.select({ source: this.store.id, range, lanes: [...this.picked] });
    this.frame.code(selectionPython(name, this.store, range, this.picked));
    this.words.update();
    this.frame.say(range ? `selected ${fmt.time(range[1] - range[0])}. ${this.words.sentence}` : `${this.picked.size} lanes selected`);
  }

  /** A click on a span selects its op on every lane. */
  selectSpan(hit: Hit): void {
    const op = hit.row.op[hit.i];
    const name = this.session.spec.name ?? "trace";
    this.session.select({ source: this.store.id, op_id: op, rank: hit.lane.rank });
    this.frame.code(op >= 0 ? `${name}.where(op_id=${op})` : `${name}.where(rank=${hit.lane.rank}, track="${TrackNames[hit.lane.track]}")`);
    const { title, pairs } = describe(this.store, hit);
    this.frame.say(`${title}, ${pairs.map((p) => p.join(" ")).join(", ")}`);
    this.found = hit;
    this.redraw(2);
  }

  clearSelection(): void {
    this.drag = null;
    this.found = null;
    this.picked.clear();
    this.words.update();
    this.session.select({});
    this.redraw(6);
  }

  mark(): void {
    if (this.cursor === null) return;
    const near = this.marks.findIndex((t) => Math.abs(this.xAt(t) - this.xAt(this.cursor!)) < 5);
    if (near >= 0) this.marks.splice(near, 1);
    else this.marks.push(this.cursor);
    if (this.marks.length > 1) this.frame.say(`between the last marks ${fmt.time(Math.abs(this.marks.at(-1)! - this.marks.at(-2)!))}`);
    this.redraw(2);
  }

  /** The flag under a point of the top (CSS pixels from its top left). */
  flagAt(x: number, y: number): Flag | null {
    return flagAt(this.flags, x, y - STRIP_H - RULER_H - 2);
  }

  /** Brings the first mark after the middle into the middle, around again after the last. */
  nextMark(): void {
    const marks = [...this.store.faults.shown()].sort((a, b) => a.t - b.t);
    if (!marks.length) return this.frame.say("no faults, no recovery");
    const [half, slack] = [(this.t1 - this.t0) / 2, (this.t1 - this.t0) * 1e-6];
    const mark = marks.find((each) => each.t > this.t0 + half + slack) ?? marks[0];
    this.setRange(mark.t - half, mark.t + half);
    this.frame.say(`${mark.word}, ${mark.where}, at ${fmt.time(mark.t)}. ${mark.text}`);
  }

  focusSearch(): void {
    this.search.focus();
    this.search.select();
  }

  find(dir: 1 | -1): void {
    const predicate = parseSearch(this.search.value);
    if (!predicate) {
      this.frame.say("nothing to search: try reduce rank:3 step:4");
      this.search.setAttribute("aria-invalid", "true");
      return;
    }
    this.search.removeAttribute("aria-invalid");
    const { hit, count } = findHit(this.store, predicate, this.found ? this.found.t : -Infinity * dir, dir);
    this.search.title = `${fmt.count(count)} hits`;
    if (!hit) {
      this.frame.say("no hits");
      return;
    }
    this.found = hit;
    const length = hit.row.end[hit.i] - hit.row.begin[hit.i];
    if (hit.t < this.t0 || hit.t > this.t1) this.setRange(hit.t - (this.t1 - this.t0) / 2, hit.t + (this.t1 - this.t0) / 2);
    if (length > 0 && length / (this.t1 - this.t0) < 0.004) this.setRange(hit.t - length * 60, hit.t + length * 60);
    this.reveal(hit);
    this.selectSpan(hit);
    this.frame.say(`${fmt.count(count)} hits`);
  }

  /** Outlines a span, and brings its line into sight. */
  reveal(hit: Hit): void {
    this.found = hit;
    const lines = this.layout.lines.filter((each) => each.lanes.includes(hit.lane) && each.kind !== "node" && each.kind !== "stack");
    const line = lines.find((each) => each.kind === "lane") ?? lines[0];
    if (line && (line.y < this.scroll.scrollTop || line.y > this.scroll.scrollTop + this.scroll.clientHeight - 20)) this.scroll.scrollTop = line.y - 60;
    this.redraw(2);
  }

  private png(): void {
    savePng(this.top, [this.base, this.over], this.layout, this.scroll.scrollTop, this.width, this.theme, this.words.sentence);
  }
}
