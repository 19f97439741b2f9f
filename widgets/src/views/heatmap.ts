// The NIC heatmap: Gb/s of every NIC over time, sent and received, against line rate.
//
// Is: one canvas, a line per NIC and direction, columns of a round number of ns. Is not: a second time axis: range and
// cursor are those of the linked timeline. Invariants: a cell is bytes moved in its interval over that interval; a NIC that
// is dead is hatched for as long as it is, and says how many bytes it carried after its paths were replaced.
import { fitCanvas, h } from "../draw/dom";
import * as fmt from "../draw/format";
import { viridis, viridisCss } from "../draw/palette";
import { Theme, readTheme, watchTheme } from "../draw/theme";
import { Link } from "../model/link";
import { Nic, gbits, nicsOf, shades } from "../model/rates";
import { Session, ViewSpec } from "../model/session";
import { Store } from "../model/store";
import { Frame, TableData, facts, sourceBadges } from "./frame";
import { bytesAfterRepair, drawDowns, labelDowns } from "./heatmap_faults";
import { FLAG_H, drawFlags, drawLines, flagMeasure, layoutFlags, markRows } from "./marks_paint";

const LEFT = 148;
const AXIS = 22;
const CELL = 4;

interface Line {
  nic: Nic;
  dir: "tx" | "rx";
  y: number;
}

export class Heatmap {
  readonly frame: Frame;
  private canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": "rate of each NIC over time; the table has the same facts" });
  private nics: Nic[] = [];
  private lines: Line[] = [];
  private shape = -1;
  private link: Link;
  private theme: Theme;
  private t0 = 0;
  private t1 = 1;
  private ranged = false;
  private cursor: number | null = null;
  private queued = 0;
  private rowH = 14;
  private width = 400;
  private topology: any;
  private top = 1;
  private axisH = AXIS;

  constructor(readonly session: Session, readonly store: Store, readonly spec: ViewSpec, readonly parent: HTMLElement, readonly signal: AbortSignal) {
    this.topology = session.spec.data.topology;
    this.frame = new Frame(spec.title ?? "NIC rates", "rate of each NIC over time");
    this.frame.body.append(this.canvas);
    this.frame.withTable("NIC rates", () => this.table());
    this.theme = readTheme(parent);
    this.link = new Link(session.spec.link, (change) => {
      if (change.range) [this.t0, this.t1, this.ranged] = [...change.range, true];
      if (change.cursor !== undefined) this.cursor = change.cursor;
      this.redraw();
    });
    if (this.link.state.range) [this.t0, this.t1, this.ranged] = [...this.link.state.range, true];
    this.listen();
  }

  private listen(): void {
    const stop = this.store.listen(() => this.redraw());
    watchTheme(this.parent, () => this.redraw(), this.signal);
    const resize = new ResizeObserver(() => this.redraw());
    resize.observe(this.frame.body);
    this.signal.addEventListener("abort", () => {
      stop();
      resize.disconnect();
      this.link.close();
      cancelAnimationFrame(this.queued);
      this.queued = -1;
    });
    const options = { signal: this.signal };
    this.canvas.addEventListener("pointermove", (event) => this.move(event), options);
    this.canvas.addEventListener("pointerleave", () => this.leave(), options);
    this.canvas.addEventListener("click", (event) => this.click(event), options);
    this.redraw();
  }

  private redraw(): void {
    if (this.queued === 0) this.queued = requestAnimationFrame(() => this.draw());
  }

  private refresh(): void {
    if (this.shape !== this.store.shape) {
      this.shape = this.store.shape;
      this.nics = nicsOf(this.store, this.topology.n_nodes, this.topology.nics_per_node);
    }
    const count = this.nics.length * 2;
    this.rowH = Math.max(3, Math.min(20, Math.floor((this.spec.height ?? 330) / Math.max(1, count))));
    this.lines = [];
    this.axisH = AXIS + (this.store.faults.shown().length ? FLAG_H : 0);
    let y = this.axisH;
    for (const nic of this.nics) {
      if (nic.nic === 0 && nic.node > 0) y += Math.max(2, this.rowH / 2);
      for (const dir of ["tx", "rx"] as const) {
        this.lines.push({ nic, dir, y });
        y += this.rowH;
      }
    }
    if (!this.ranged) [this.t0, this.t1] = [0, Math.max(1, this.store.end)];
  }

  private lineRate(nic: Nic): number {
    return this.topology.nic_gbits[nic.node * this.topology.nics_per_node + nic.nic] ?? 0;
  }

  private x(t: number): number {
    return LEFT + ((t - this.t0) / (this.t1 - this.t0)) * (this.width - LEFT);
  }

  private draw(): void {
    this.queued = 0;
    this.refresh();
    this.theme = readTheme(this.parent);
    const width = Math.max(240, this.frame.body.clientWidth);
    const height = (this.lines.at(-1)?.y ?? this.axisH) + this.rowH + 4;
    this.width = width;
    const ratio = fitCanvas(this.canvas, width, height);
    const ctx = this.canvas.getContext("2d")!;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = this.theme.ground;
    ctx.fillRect(0, 0, width, height);
    this.axis(ctx, width);
    this.cells(ctx, width);
    this.labels(ctx);
    if (this.cursor !== null && this.cursor >= this.t0 && this.cursor <= this.t1) {
      ctx.fillStyle = this.theme.ink;
      ctx.globalAlpha = 0.55;
      ctx.fillRect(this.x(this.cursor), this.axisH, 1, height - this.axisH);
      ctx.globalAlpha = 1;
    }
    this.faults(ctx, width, height);
    this.head();
  }

  private faults(ctx: CanvasRenderingContext2D, width: number, height: number): void {
    const marks = this.store.faults.shown();
    const xAt = (t: number) => this.x(t);
    const until = Math.max(this.store.end, this.store.faults.end());
    const areas = this.lines.filter((line) => line.dir === "tx").map(({ nic, y }) => ({ nic, downs: this.store.faults.of(nic.node, nic.nic), area: { y, h: this.rowH * 2 - 1, left: LEFT, right: width, until } }));
    for (const { downs, area } of areas) drawDowns(ctx, downs, area, xAt, this.theme);
    drawLines(ctx, marks, xAt, LEFT, width, AXIS, height);
    for (const { nic, downs, area } of areas) labelDowns(ctx, downs, nic, area, xAt, this.theme);
    if (!marks.length) return;
    const flags = layoutFlags(marks.filter((mark) => this.x(mark.t) >= LEFT), xAt, width, 1, flagMeasure(ctx));
    drawFlags(ctx, flags, AXIS);
  }

  private axis(ctx: CanvasRenderingContext2D, width: number): void {
    ctx.font = "11px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    for (const tick of fmt.ticks(this.t0, this.t1, (width - LEFT) / 110)) {
      const x = this.x(tick.t);
      ctx.fillStyle = this.theme.line;
      ctx.fillRect(x, AXIS - 6, 1, 5);
      ctx.fillStyle = this.theme.faint;
      if (x + 4 + ctx.measureText(tick.label).width < width) ctx.fillText(tick.label, x + 4, AXIS / 2);
    }
  }

  private cells(ctx: CanvasRenderingContext2D, width: number): void {
    const dt = fmt.roundStep(((this.t1 - this.t0) / (width - LEFT)) * CELL);
    const first = Math.floor(this.t0 / dt);
    const count = Math.ceil(this.t1 / dt) - first;
    const known = this.topology.nic_gbits.some((v: number) => v > 0);
    const values = this.lines.map((line) => {
      const out = new Float32Array(count);
      for (const row of line.nic[line.dir]) {
        let before = row.bytesBefore(first * dt);
        for (let k = 0; k < count; k++) {
          const after = row.bytesBefore((first + k + 1) * dt);
          out[k] += ((after - before) * 8) / dt;
          before = after;
        }
      }
      return out;
    });
    this.top = known ? Math.max(...this.topology.nic_gbits) : Math.max(1e-9, ...values.map((v) => v.reduce((a, b) => Math.max(a, b), 0)));
    const gap = this.rowH > 6 ? 1.5 : this.rowH > 4 ? 1 : 0;
    ctx.save();
    ctx.beginPath();
    ctx.rect(LEFT, this.axisH, width - LEFT, 1e5);
    ctx.clip();
    this.lines.forEach((line, j) => this.strip(ctx, line, values[j], first, dt, line.dir === "rx" ? gap : 0.5));
    ctx.restore();
  }

  private strip(ctx: CanvasRenderingContext2D, line: Line, values: Float32Array, first: number, dt: number, gap: number): void {
    const top = this.lineRate(line.nic) || this.top;
    const height = this.rowH - gap;
    ctx.fillStyle = this.theme.raised;
    ctx.fillRect(LEFT, line.y, this.width - LEFT, height);
    for (const { from, to, shade } of shades(values, top)) {
      const [r, g, b] = viridis(shade);
      ctx.fillStyle = `rgb(${r | 0},${g | 0},${b | 0})`;
      const x0 = this.x((first + from) * dt);
      ctx.fillRect(x0, line.y, this.x((first + to) * dt) - x0 + 0.3, height);
    }
  }

  /** The interval whose rate the labels show: around the cursor, or all that is visible. */
  private window(): [number, number] {
    if (this.cursor === null) return [this.t0, this.t1];
    const half = (this.t1 - this.t0) / 160;
    return [this.cursor - half, this.cursor + half];
  }

  private labels(ctx: CanvasRenderingContext2D): void {
    const [a, b] = this.window();
    ctx.textBaseline = "middle";
    for (const line of this.lines) {
      const { nic, dir } = line;
      const middle = line.y + this.rowH / 2;
      ctx.font = "11px system-ui, sans-serif";
      ctx.textAlign = "left";
      if (dir === "tx" && (nic.nic === 0 || this.rowH > 7)) {
        ctx.fillStyle = this.theme.ink;
        if (nic.nic === 0) ctx.fillText(`node ${nic.node}`, 8, this.rowH > 7 ? middle : line.y + 6);
        ctx.fillStyle = this.theme.faint;
        if (this.rowH > 7) ctx.fillText(`NIC ${nic.nic}`, 54, line.y + this.rowH);
      }
      if (this.rowH < 9) continue;
      const value = gbits(nic[dir], a, b);
      ctx.fillStyle = this.theme.faint;
      ctx.font = "10px system-ui, sans-serif";
      ctx.fillText(dir === "tx" ? "↑" : "↓", 94, middle);
      ctx.textAlign = "right";
      ctx.fillStyle = value > 0 ? this.theme.ink : this.theme.faint;
      ctx.fillText(value >= 100 ? value.toFixed(0) : value.toFixed(value >= 10 ? 1 : 2), LEFT - 8, middle);
    }
    ctx.textAlign = "left";
  }

  private head(): void {
    const known = this.topology.nic_gbits.some((v: number) => v > 0);
    this.frame.subtitle(`↑ sent, ↓ received, Gb/s ${this.cursor === null ? "over the visible time" : `at ${fmt.time(this.cursor)}`}`);
    this.frame.badges(this.spec.half ? [] : sourceBadges(this.store.meta, this.store.drops, this.store.live));
    const stops = Array.from({ length: 9 }, (_, i) => viridisCss(i / 8)).join(",");
    const bar = h("span", { class: "ccl-key" }, "0", h("i", { style: `width:140px;background:linear-gradient(90deg,${stops})` }), `${fmt.rate(this.top)} ${known ? "= line rate" : "= highest seen (line rate unknown)"}`);
    this.frame.legend([], [bar]);
    this.frame.fillTable();
  }

  private lineAt(event: PointerEvent | MouseEvent): { line: Line; t: number } | null {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const line = this.lines.find((each) => y >= each.y && y < each.y + this.rowH);
    if (!line) return null;
    return { line, t: this.t0 + ((x - LEFT) / (this.width - LEFT)) * (this.t1 - this.t0) };
  }

  private move(event: PointerEvent): void {
    const at = this.lineAt(event);
    if (!at || at.t < this.t0) return this.leave();
    this.cursor = at.t;
    this.link.tell({ cursor: at.t });
    const { nic, dir } = at.line;
    const value = gbits(nic[dir], ...this.window());
    const rate = this.lineRate(nic);
    const share = rate > 0 ? ` · ${((100 * value) / rate).toFixed(0)} % of ${fmt.rate(rate)}` : "";
    const mean = gbits(nic[dir], this.t0, this.t1);
    this.frame.tip(facts(`node ${nic.node} · NIC ${nic.nic} ${dir === "tx" ? "sent" : "received"}`, [["rate", fmt.rate(value) + share], ["at", fmt.time(at.t)], ["mean", `${fmt.rate(mean)} over the visible time`]]), event.clientX, event.clientY);
    this.redraw();
  }

  private leave(): void {
    this.cursor = null;
    this.link.tell({ cursor: null });
    this.frame.tip(null);
    this.redraw();
  }

  private click(event: MouseEvent): void {
    const at = this.lineAt(event);
    if (!at) return;
    const { nic, dir } = at.line;
    this.session.select({ source: this.store.id, node: nic.node, nic: nic.nic });
    this.frame.code(`${this.session.spec.name ?? "trace"}.where(node=${nic.node}, track="nic_${dir}", index=${nic.nic})`);
    this.frame.say(`node ${nic.node} NIC ${nic.nic} selected`);
  }

  private table(): TableData {
    const hurt = this.store.faults.downs.length > 0;
    const rows = this.nics.flatMap((nic) =>
      (["tx", "rx"] as const).map((dir) => {
        const mean = gbits(nic[dir], this.t0, this.t1);
        const rate = this.lineRate(nic);
        const bytes = nic[dir].reduce((sum, row) => sum + row.bytesBefore(this.t1) - row.bytesBefore(this.t0), 0);
        return [`node ${nic.node} NIC ${nic.nic} ${dir}`, fmt.rate(mean), rate ? fmt.rate(rate) : "unknown", rate ? `${((100 * mean) / rate).toFixed(1)} %` : "", fmt.bytes(Math.round(bytes)), ...(hurt ? [this.hurtWords(nic)] : [])];
      }),
    );
    const head = ["NIC", "mean rate", "line rate", "share", "bytes", ...(hurt ? ["faults"] : [])];
    return { head, rows: rows.slice(0, 500), also: markRows(this.store.faults.shown()) };
  }

  /** What held a NIC, in words. */
  private hurtWords(nic: Nic): string {
    const words = this.store.faults.of(nic.node, nic.nic).map((down) => {
      const after = down.dead && down.repaired !== null ? `, ${fmt.bytes(bytesAfterRepair(nic, down))} after repair` : "";
      return `${down.word} from ${fmt.time(down.from)}${Number.isFinite(down.to) ? ` to ${fmt.time(down.to)}` : ""}${after}`;
    });
    return words.join("; ");
  }
}

