// A NIC that is not whole, on the heatmap: hatched while nothing may pass, underlined while it only goes slower.
//
// Is: paint over the two lines of a NIC, with icon and word, and the bytes it carried after its paths were replaced (none,
// if the repair is right). Is not: rates.
import * as fmt from "../draw/format";
import { Theme } from "../draw/theme";
import { Down } from "../model/faults";
import { Nic } from "../model/rates";

interface Area {
  y: number;
  h: number;
  left: number;
  right: number;
  /** Until when there is something to see. */
  until: number;
}

const patterns = new Map<string, CanvasPattern | null>();

function hatch(ctx: CanvasRenderingContext2D, color: string): CanvasPattern | string {
  if (!patterns.has(color)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const c = tile.getContext("2d")!;
    c.strokeStyle = color;
    c.lineWidth = 1.6;
    for (const d of [-8, 0, 8]) {
      c.moveTo(d - 1, 9);
      c.lineTo(d + 9, -1);
    }
    c.stroke();
    patterns.set(color, ctx.createPattern(tile, "repeat"));
  }
  return patterns.get(color) ?? color;
}

/** Bytes of segments that began after the repair and before the NIC was whole again. */
export function bytesAfterRepair(nic: Nic, down: Down): number {
  if (down.repaired === null) return 0;
  let bytes = 0;
  for (const row of [...nic.tx, ...nic.rx]) {
    const stop = Number.isFinite(down.to) ? row.after(down.to) : row.n;
    for (let i = row.after(down.repaired); i < stop; i++) bytes += row.nbytes[i];
  }
  return bytes;
}

function bounds(down: Down, area: Area, xAt: (t: number) => number): [number, number] {
  return [Math.max(area.left, xAt(down.from)), Math.min(area.right, xAt(Math.min(down.to, Math.max(area.until, down.from))))];
}

function bad(theme: Theme): string {
  return theme.dark ? "#ff8a80" : "#b3261e";
}

/** Draws the intervals of one NIC over its lines. */
export function drawDowns(ctx: CanvasRenderingContext2D, downs: Down[], area: Area, xAt: (t: number) => number, theme: Theme): void {
  for (const down of downs) {
    const [x0, x1] = bounds(down, area, xAt);
    if (x1 <= x0) continue;
    ctx.save();
    if (down.dead) {
      ctx.globalAlpha = 0.75;
      ctx.fillStyle = hatch(ctx, bad(theme));
      ctx.fillRect(x0, area.y, x1 - x0, area.h);
    } else {
      ctx.fillStyle = bad(theme);
      for (let x = x0; x < x1; x += 7) ctx.fillRect(x, area.y + area.h - 2, Math.min(4, x1 - x), 2);
    }
    ctx.restore();
  }
}

/** Says what holds, over hatch and marks. */
export function labelDowns(ctx: CanvasRenderingContext2D, downs: Down[], nic: Nic, area: Area, xAt: (t: number) => number, theme: Theme): void {
  for (const down of downs) label(ctx, wordings(nic, down), ...bounds(down, area, xAt), area, theme);
}

function wordings(nic: Nic, down: Down): string[] {
  const short = `${down.icon} ${down.word}`;
  if (!down.dead || down.repaired === null) return [short, down.icon];
  const bytes = bytesAfterRepair(nic, down);
  return [`${short} · ${bytes > 0 ? "⚠ " : ""}${fmt.bytes(bytes)} after repair`, short, down.icon];
}

function label(ctx: CanvasRenderingContext2D, texts: string[], x0: number, x1: number, area: Area, theme: Theme): void {
  if (area.h < 12) return;
  ctx.save();
  ctx.font = "600 10px system-ui, sans-serif";
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  const text = texts.find((each) => ctx.measureText(each).width + 14 <= x1 - x0);
  if (text) {
    const w = ctx.measureText(text).width + 8;
    const y = area.y + area.h / 2;
    ctx.fillStyle = theme.ground;
    ctx.beginPath();
    ctx.roundRect(x0 + 4, y - 7, w, 14, 3);
    ctx.fill();
    ctx.fillStyle = bad(theme);
    ctx.fillText(text, x0 + 8, y + 0.5);
  }
  ctx.restore();
}
