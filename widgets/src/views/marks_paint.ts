// Marks of faults and recovery on a picture of time: a vertical line at the moment, a flag with icon and word above it.
//
// Is: where flags stand so that none hides another, and their paint; timeline and heatmap share it. Is not: what happened.
// Invariants: every mark keeps its line; marks too close to tell apart share a flag, named after the worst of them; a flag
// that finds no room is shortened to icon and word, then to its icons.
import { Mark } from "../model/faults";
import { facts } from "./frame";
import * as fmt from "../draw/format";

export const FLAG_H = 16;
const GAP = 3;
// All dark enough for white words; dashes differ too, so that colour is not all there is.
const LOOKS: Record<Mark["look"], { color: string; dash: number[] }> = {
  fault: { color: "#c1121f", dash: [] },
  lost: { color: "#a14600", dash: [5, 3] },
  verdict: { color: "#7b3f9d", dash: [2, 3] },
  heal: { color: "#00785a", dash: [] },
};

export interface Flag {
  /** In order of time; the flag is named after `marks[named]`. */
  marks: Mark[];
  named: number;
  x: number;
  w: number;
  row: number;
  text: string;
}

const NEAR = 9;
const RANKING: Mark["look"][] = ["fault", "verdict", "lost", "heal"];

/** What a flag may say, longest first. */
function wordings(marks: Mark[], mark: Mark): string[] {
  const icons = marks.map((each) => each.icon).filter((icon, i, all) => all.indexOf(icon) === i).join("");
  const many = marks.length === 1 && mark.count > 1 ? ` ×${mark.count}` : "";
  const others = marks.filter((each) => each.look === mark.look).length - 1;
  const more = others > 0 ? ` +${others}` : "";
  const short = `${icons} ${mark.word}${many}`;
  return [(mark.where ? `${short} · ${mark.where}` : short) + more, short + more, icons, marks.length > 1 ? mark.icon : icons];
}

/** Flags of the marks within [0, width], on `rows` rows; `measure` gives the width of a text. */
export function layoutFlags(marks: Mark[], xAt: (t: number) => number, width: number, rows: number, measure: (text: string) => number): Flag[] {
  const visible = marks.map((mark) => ({ mark, x: xAt(mark.t) })).filter(({ x }) => x >= 0 && x <= width).sort((a, b) => a.x - b.x);
  const clusters: { x: number; marks: Mark[] }[] = [];
  for (const { mark, x } of visible) {
    const last = clusters.at(-1);
    if (last && x - last.x < NEAR) last.marks.push(mark);
    else clusters.push({ x, marks: [mark] });
  }
  // Right to left: each flag as long as what stands on its row after it lets it be.
  const room = Array.from({ length: rows }, () => width);
  const flags: Flag[] = [];
  for (const { x, marks: near } of clusters.reverse()) {
    const named = near.reduce((best, mark, i) => (RANKING.indexOf(mark.look) < RANKING.indexOf(near[best].look) ? i : best), 0);
    const found = pick(wordings(near, near[named]), x, room, measure);
    if (!found) continue;
    room[found.row] = found.x - GAP;
    flags.push({ marks: near, named, ...found });
  }
  return flags.reverse();
}

/** The longest wording that fits on some row, on the one with least room to spare; at the right edge it points left. */
function pick(texts: string[], x: number, room: number[], measure: (text: string) => number): { row: number; x: number; w: number; text: string } | null {
  const byEnd = room.map((end, row) => ({ end, row })).sort((a, b) => a.end - b.end);
  for (const text of texts) {
    const w = measure(text) + 8;
    const right = byEnd.find(({ end }) => x + w <= end);
    if (right) return { row: right.row, x, w, text };
    const left = text === texts[0] ? undefined : byEnd.find(({ end }) => x + 2 <= end && x - w >= 0);
    if (left) return { row: left.row, x: x + 1.5 - w, w, text };
  }
  return null;
}

/** Draws flags whose rows begin at y. The context is in CSS pixels. */
export function drawFlags(ctx: CanvasRenderingContext2D, flags: Flag[], y: number): void {
  ctx.save();
  ctx.font = "600 10px system-ui, sans-serif";
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  for (const flag of flags) {
    const top = y + flag.row * FLAG_H;
    ctx.fillStyle = LOOKS[flag.marks[flag.named].look].color;
    ctx.beginPath();
    ctx.roundRect(flag.x, top, flag.w, FLAG_H - 2, 3);
    ctx.fill();
    ctx.fillStyle = "#ffffff";
    ctx.fillText(flag.text, flag.x + 4, top + (FLAG_H - 2) / 2 + 0.5);
  }
  ctx.restore();
}

/** The line of every mark, from y0 to y1; the worst on top. */
export function drawLines(ctx: CanvasRenderingContext2D, marks: Mark[], xAt: (t: number) => number, left: number, right: number, y0: number, y1: number): void {
  ctx.save();
  ctx.lineWidth = 1.5;
  for (const mark of [...marks].sort((a, b) => RANKING.indexOf(b.look) - RANKING.indexOf(a.look))) {
    const x = xAt(mark.t);
    if (x < left || x > right) continue;
    const { color, dash } = LOOKS[mark.look];
    ctx.setLineDash(dash);
    ctx.strokeStyle = color;
    ctx.beginPath();
    ctx.moveTo(x + 0.75, y0);
    ctx.lineTo(x + 0.75, y1);
    ctx.stroke();
  }
  ctx.restore();
}

/** A mark set by hand: a line with its words at the top of the lanes. */
export function drawMark(ctx: CanvasRenderingContext2D, x: number, width: number, height: number, color: string, text: string): void {
  if (x < 0 || x > width) return;
  ctx.fillStyle = color;
  ctx.fillRect(x, 0, 1.5, height);
  const w = flagMeasure(ctx)(text) + 8;
  ctx.fillRect(x, 0, w, 14);
  ctx.fillStyle = "#fff";
  ctx.textBaseline = "middle";
  ctx.fillText(text, x + 4, 7.5);
}

/** The measure that `drawFlags` draws by. */
export function flagMeasure(ctx: CanvasRenderingContext2D): (text: string) => number {
  ctx.font = "600 10px system-ui, sans-serif";
  return (text) => ctx.measureText(text).width;
}

/** The flag at a point, y counted from the first row of flags. */
export function flagAt(flags: Flag[], x: number, y: number): Flag | null {
  const row = Math.floor(y / FLAG_H);
  return flags.find((flag) => flag.row === row && x >= flag.x && x <= flag.x + flag.w) ?? null;
}

/** What a tooltip says of a flag: of one mark all there is, of several a line each. */
export function flagFacts(flag: Flag): string {
  const { marks } = flag;
  const [mark] = marks;
  if (marks.length > 1) return facts(marks[flag.named].where || marks[flag.named].word, marks.map((m) => [fmt.time(m.t), `${m.icon} ${m.word}${m.count > 1 ? ` ×${m.count}` : ""}`]));
  const pairs: [string, string][] = [["at", fmt.time(mark.t)]];
  if (mark.where) pairs.push(["where", mark.where]);
  if (mark.count > 1) pairs.push(["paths", String(mark.count)]);
  if (mark.text) pairs.push([mark.look === "verdict" ? "evidence" : mark.cause ? "Python" : "why", mark.text]);
  return facts(`${mark.icon} ${mark.word}`, pairs);
}

/** Rows for a table of the same facts. */
export function markRows(marks: Mark[]): { head: string[]; rows: (string | number)[][] } {
  return { head: ["mark", "at", "where", "paths", "evidence"], rows: marks.map((m) => [`${m.icon} ${m.word}`, fmt.time(m.t), m.where, m.count, m.text]) };
}
