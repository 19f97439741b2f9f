// Where each lane of a timeline stands, and the labels at its left.
//
// Is: lines (node, rank, lane) with their y, made anew when lanes come or a label is collapsed. Is not: pixels of spans.
import { h } from "../draw/dom";
import { Lane, Store } from "../model/store";
import { Row } from "../model/row";
import { Track } from "../model/schema";

export const GUTTER = 148;
export const RANK_WIDTH = 56;
const NODE_H = 20;
const ROW_H = 11;
const STACK_H = 15;
const FOLDED_H = 18;

export interface Line {
  /** stack: what the time of the rank goes to, above its lanes. */
  kind: "node" | "rank" | "stack" | "lane";
  y: number;
  h: number;
  label: string;
  key: string;
  rows: Row[];
  lanes: Lane[];
  /** Rows are drawn on top of each other as one summary. */
  merged: boolean;
  collapsed: boolean;
  band: boolean;
}

const ORDER = [Track.control, Track.compute, Track.channel, Track.copy, Track.fabric, Track.nic_tx, Track.nic_rx] as number[];

function byPlace(a: Lane, b: Lane): number {
  return a.node - b.node || a.rank - b.rank || ORDER.indexOf(a.track) - ORDER.indexOf(b.track) || a.index - b.index;
}

export class Layout {
  lines: Line[] = [];
  height = 0;
  private shape = -1;
  private collapsed = new Map<string, boolean>();
  private laneLimit = 200;

  constructor(private store: Store, private folded = false) {}

  /** True where the lines changed. */
  refresh(): boolean {
    if (this.shape === this.store.shape) return false;
    this.shape = this.store.shape;
    this.build();
    return true;
  }

  toggle(key: string): void {
    this.collapsed.set(key, !this.isCollapsed(key));
    this.build();
  }

  /** Folds every rank into one line, or opens all. */
  foldAll(on: boolean): void {
    for (const lane of this.store.lanes) this.collapsed.set(`r${lane.rank}`, on);
    this.build();
  }

  /** True where every rank is one line. */
  get allFolded(): boolean {
    return this.lines.every((line) => line.kind !== "rank" || line.collapsed);
  }

  private isCollapsed(key: string): boolean {
    const many = this.folded || this.store.lanes.length > this.laneLimit;
    const veryMany = this.store.lanes.length > 40 * this.laneLimit;
    return this.collapsed.get(key) ?? (key.startsWith("r") ? many : veryMany);
  }

  private build(): void {
    const lanes = this.store.lanes.filter((lane) => lane.rows.length).sort(byPlace);
    this.lines = [];
    let y = 0;
    let i = 0;
    while (i < lanes.length) {
      let j = i;
      while (j < lanes.length && lanes[j].node === lanes[i].node) j++;
      y = this.addNode(lanes.slice(i, j), y);
      i = j;
    }
    this.height = y;
  }

  private addNode(lanes: Lane[], y: number): number {
    const node = lanes[0].node;
    const key = `n${node}`;
    const collapsed = this.isCollapsed(key);
    const ranks = new Set(lanes.map((lane) => lane.rank)).size;
    const label = (node < 0 ? "node unknown" : `node ${node}`) + (collapsed ? ` · ${ranks} ranks` : "");
    const height = collapsed ? 26 : NODE_H;
    this.push("node", y, height, label, key, lanes, collapsed, collapsed);
    y += height;
    if (collapsed) return y;
    let i = 0;
    while (i < lanes.length) {
      let j = i;
      while (j < lanes.length && lanes[j].rank === lanes[i].rank) j++;
      y = this.addRank(lanes.slice(i, j), y);
      i = j;
    }
    return y;
  }

  private addRank(lanes: Lane[], y: number): number {
    const key = `r${lanes[0].rank}`;
    const collapsed = this.isCollapsed(key);
    const label = `rank ${lanes[0].rank}`;
    if (collapsed) {
      this.push("rank", y, FOLDED_H, label, key, lanes, true, true);
      return y + FOLDED_H;
    }
    const top = y;
    const line = this.push("rank", y, 0, label, key, lanes, false, false);
    y += 1;
    if (this.store.computes && lanes[0].rank >= 0) {
      this.push("stack", y, STACK_H, "exposed?", `s${lanes[0].rank}`, lanes, true, false, lanes[0].rank % 2 === 1);
      y += STACK_H;
    }
    for (const lane of lanes) {
      const height = Math.max(13, ROW_H * lane.rows.length + 2);
      this.push("lane", y, height, lane.label, `l${lane.id}`, [lane], false, false, lanes[0].rank % 2 === 1);
      y += height;
    }
    line.h = y - top;
    return y;
  }

  private push(kind: Line["kind"], y: number, height: number, label: string, key: string, lanes: Lane[], merged: boolean, collapsed: boolean, band = false): Line {
    // A summary leaves out control lanes: a collective lasts all the time.
    const told = merged && lanes.some((lane) => lane.track !== Track.control) ? lanes.filter((lane) => lane.track !== Track.control) : lanes;
    const rows = kind === "lane" || merged ? told.flatMap((lane) => lane.rows) : [];
    const line: Line = { kind, y, h: height, label, key, rows, lanes, merged, collapsed, band };
    this.lines.push(line);
    return line;
  }

  lineAt(y: number): Line | null {
    for (const line of this.lines) {
      const picture = line.kind === "lane" || line.merged;
      if (picture && y >= line.y && y < line.y + line.h) return line;
    }
    return null;
  }

  /** Fills the gutter with the labels between two heights. */
  labels(gutter: HTMLElement, top: number, bottom: number, picked: Set<number>, click: (line: Line, event: MouseEvent) => void): void {
    const nodes: Node[] = [];
    for (const line of this.lines) {
      if (line.y + line.h < top || line.y > bottom) continue;
      nodes.push(this.label(line, picked, click));
    }
    gutter.replaceChildren(...nodes);
  }

  private label(line: Line, picked: Set<number>, click: (line: Line, event: MouseEvent) => void): HTMLElement {
    const place = (left: number, width: number) => `left:${left}px;width:${width}px;top:${line.y}px;height:${line.h}px;line-height:${Math.min(line.h, 18)}px`;
    if (line.kind === "stack") return h("div", { class: "lane", style: `${place(RANK_WIDTH, GUTTER - RANK_WIDTH)};line-height:${line.h}px`, title: "computation, exposed communication, exposed copies, idle" }, line.label);
    if (line.kind === "lane") {
      const class_ = picked.has(line.lanes[0].id) ? "lane pick" : "lane";
      return h("div", { class: class_, style: `${place(RANK_WIDTH, GUTTER - RANK_WIDTH)};line-height:${line.h}px`, onclick: (e) => click(line, e) }, line.label);
    }
    const full = line.kind === "node" || line.collapsed;
    return h(
      "button",
      {
        type: "button",
        class: line.kind,
        "data-key": line.key,
        "aria-expanded": String(!line.collapsed),
        "aria-label": `${line.label}, ${line.collapsed ? "expand" : "collapse"}`,
        style: place(0, full ? GUTTER : RANK_WIDTH),
        onclick: (e) => click(line, e),
      },
      `${line.collapsed ? "▸" : "▾"} ${line.label}`,
    );
  }
}
