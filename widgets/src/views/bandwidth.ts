// Bandwidth against message size: a line per algorithm, both axes as nccl-tests readers know them.
//
// Is: a small static SVG for files and pages without plotly. Is not: a chart library.
import { h, s } from "../draw/dom";
import * as fmt from "../draw/format";
import { Theme, readTheme, watchTheme } from "../draw/theme";
import { Session, ViewSpec } from "../model/session";
import { Frame, facts } from "./frame";

const COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
const MARKS = ["circle", "square", "diamond", "triangle"];
const [W, H, L, B, T, R] = [760, 270, 58, 40, 12, 30];

interface Line {
  name: string;
  nbytes: number[];
  algbw: number[];
  busbw: number[];
}

function mark(kind: string, x: number, y: number, color: string): SVGElement {
  const common = { fill: color };
  if (kind === "square") return s("rect", { x: x - 3.5, y: y - 3.5, width: 7, height: 7, ...common });
  if (kind === "diamond") return s("path", { d: `M${x} ${y - 5}l5 5l-5 5l-5 -5z`, ...common });
  if (kind === "triangle") return s("path", { d: `M${x} ${y - 5}l5 9h-10z`, ...common });
  return s("circle", { cx: x, cy: y, r: 4, ...common });
}

class Chart {
  private which: "busbw" | "algbw" = "busbw";
  readonly frame: Frame;
  private lines: Line[];

  constructor(session: Session, spec: ViewSpec, private parent: HTMLElement, signal: AbortSignal) {
    this.lines = session.spec.data.bandwidth.lines;
    this.frame = new Frame(spec.title ?? "Bandwidth", "bandwidth against message size");
    this.frame.button("algbw", "Switch between busbw and algbw", (button) => {
      button.textContent = this.which;
      this.which = this.which === "busbw" ? "algbw" : "busbw";
      this.draw();
    });
    this.frame.withTable("bandwidth", () => ({
      head: ["line", "bytes", "algbw GB/s", "busbw GB/s"],
      rows: this.lines.flatMap((line) => line.nbytes.map((n, i) => [line.name, fmt.bytes(n), line.algbw[i].toPrecision(4), line.busbw[i].toPrecision(4)])),
    }));
    watchTheme(this.parent, () => this.draw(), signal);
    this.draw();
  }

  private draw(): void {
    const theme = readTheme(this.parent);
    const sizes = this.lines.flatMap((line) => line.nbytes.filter((n) => n > 0));
    const top = fmt.roundStep(Math.max(1e-9, ...this.lines.flatMap((line) => line[this.which])));
    const [x0, x1] = [Math.floor(Math.log2(Math.min(...sizes))), Math.ceil(Math.log2(Math.max(...sizes)))];
    const x = (n: number) => L + ((Math.log2(n) - x0) / Math.max(1, x1 - x0)) * (W - L - R);
    const y = (v: number) => H - B - (v / top) * (H - B - T);
    const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", width: "100%", "aria-label": `${this.which} in GB/s against message size; the table has the numbers` });
    (svg as any).style.cssText = "display:block;max-width:900px;margin:6px auto";
    this.axes(svg, theme, x0, x1, top, x, y);
    this.lines.forEach((line, k) => this.line(svg, line, k, x, y));
    this.frame.body.replaceChildren(svg);
    this.frame.subtitle(`${this.which} in GB/s (1e9), as nccl-tests define it`);
    this.frame.legend([], this.lines.map((line, k) => h("span", { class: "ccl-key" }, h("i", { style: `background:${COLORS[k % COLORS.length]}` }), `${line.name} (${MARKS[k % MARKS.length]})`)));
    this.frame.fillTable();
  }

  private axes(svg: SVGElement, theme: Theme, x0: number, x1: number, top: number, x: (n: number) => number, y: (v: number) => number): void {
    for (let k = 0; k <= 5; k++) {
      const v = (top * k) / 5;
      svg.append(s("line", { x1: L, x2: W - R, y1: y(v), y2: y(v), stroke: theme.line, "stroke-width": k ? 0.6 : 1 }));
      svg.append(s("text", { x: L - 8, y: y(v) + 4, "text-anchor": "end", "font-size": 11, fill: theme.faint }, String(Number(v.toPrecision(3)))));
    }
    const every = Math.max(1, Math.ceil((x1 - x0) / 8));
    for (let p = x0; p <= x1; p += every) {
      svg.append(s("text", { x: x(2 ** p), y: H - B + 18, "text-anchor": "middle", "font-size": 11, fill: theme.faint }, fmt.bytes(2 ** p)));
    }
    svg.append(s("text", { x: (W + L) / 2, y: H - 4, "text-anchor": "middle", "font-size": 11, fill: theme.faint }, "message size"));
  }

  private line(svg: SVGElement, line: Line, k: number, x: (n: number) => number, y: (v: number) => number): void {
    const color = COLORS[k % COLORS.length];
    const points = line.nbytes.map((n, i) => [x(Math.max(1, n)), y(line[this.which][i])]);
    svg.append(s("polyline", { points: points.map((p) => p.join(",")).join(" "), fill: "none", stroke: color, "stroke-width": 2 }));
    points.forEach(([px, py], i) => {
      const el = mark(MARKS[k % MARKS.length], px, py, color);
      const tip = facts(line.name, [["size", fmt.bytes(line.nbytes[i])], ["busbw", `${line.busbw[i].toPrecision(4)} GB/s`], ["algbw", `${line.algbw[i].toPrecision(4)} GB/s`]]);
      el.addEventListener("pointerenter", (event: any) => this.frame.tip(tip, event.clientX, event.clientY));
      el.addEventListener("pointerleave", () => this.frame.tip(null));
      svg.append(el);
    });
  }
}

export function bandwidthView(session: Session, spec: ViewSpec, root: HTMLElement, signal: AbortSignal): HTMLElement {
  return new Chart(session, spec, root, signal).frame.root;
}
