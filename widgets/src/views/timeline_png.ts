// A timeline as one PNG. Is not: what is drawn (that is on the canvases).
import { download } from "../draw/dom";
import { GUTTER, Layout } from "./timeline_layout";
import { Theme } from "../draw/theme";

/** Joins the canvases and writes the labels at their left. */
export function savePng(top: HTMLCanvasElement, lanes: HTMLCanvasElement[], layout: Layout, scrolled: number, width: number, theme: Theme, words: string): void {
  const out = document.createElement("canvas");
  const ratio = lanes[0].width / width;
  const head = words ? 22 * ratio : 0;
  out.width = (GUTTER + width) * ratio;
  out.height = head + top.height + lanes[0].height;
  const ctx = out.getContext("2d")!;
  ctx.fillStyle = theme.ground;
  ctx.fillRect(0, 0, out.width, out.height);
  ctx.drawImage(top, GUTTER * ratio, head);
  for (const canvas of lanes) ctx.drawImage(canvas, GUTTER * ratio, head + top.height);
  ctx.scale(ratio, ratio);
  ctx.fillStyle = theme.ink;
  ctx.font = "11px system-ui, sans-serif";
  ctx.textBaseline = "middle";
  if (words) ctx.fillText(words, 6, 11, GUTTER + width - 12);
  const from = (head + top.height) / ratio;
  for (const line of layout.lines) {
    const inner = line.kind === "lane" || line.kind === "stack";
    const y = line.y - scrolled + from + (inner ? line.h / 2 : 9);
    if (y > from) ctx.fillText(line.label, inner ? 60 : 6, y);
  }
  download("timeline.png", out.toDataURL("image/png"));
}
