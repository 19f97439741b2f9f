// The topology: nodes with their ranks and NICs, the rails between them, and how fast each NIC goes.
//
// Is: an SVG that scales; rates follow the linked cursor, or the newest spans of a live source; in a panel a click on a NIC
// or rank opens the menu of what can be done to it. Is not: a graph layout, or what the menu does (Python).
// Invariant: a state is said by icon and word, never by colour alone.
import { h, s, download } from "../draw/dom";
import * as fmt from "../draw/format";
import { inkOn, viridis, viridisCss } from "../draw/palette";
import { Theme, readTheme, watchTheme } from "../draw/theme";
import { Link } from "../model/link";
import { Nic, gbits, nicsOf } from "../model/rates";
import { Session, ViewSpec } from "../model/session";
import { Store } from "../model/store";
import { Frame, TableData } from "./frame";
import { faultMenu } from "./topology_menu";

const MAX_NODES = 16;
const NIC_W = 86;
const NIC_H = 50;
const RANK_H = 26;
const PAD = 14;
const CARD_H = 158;
const LIVE_NS = 250e6;

/** What a NIC sends or receives: the bar, what cuts the number on it, and the number on the empty part and on the bar. */
interface Bar {
  dir: "tx" | "rx";
  fill: SVGElement;
  clip: SVGElement;
  text: SVGElement;
  over: SVGElement;
}

// Names in a page are shared by all its views.
let barsMade = 0;

// Icons of states that Python did not tell.
const ICONS: Record<string, string> = { up: "●", down: "✕", slow: "▼", suspect: "?" };
// A dashed edge: nothing passes here.
const DEAD = new Set(["down", "unplugged", "silent", "severed", "lost", "killed"]);

export class TopologyView {
  readonly frame: Frame;
  private topology: any;
  private svg: SVGElement = s("svg", {});
  private nics: Nic[] = [];
  private shape = -1;
  private link: Link;
  private theme: Theme;
  private cursor: number | null = null;
  private range: [number, number] | null = null;
  private picked = "";
  private queued = 0;
  private updates: (() => void)[] = [];

  constructor(readonly session: Session, readonly store: Store | undefined, readonly spec: ViewSpec, readonly parent: HTMLElement, readonly signal: AbortSignal) {
    this.topology = session.spec.data.topology;
    const t = this.topology;
    this.frame = new Frame(spec.title ?? "Topology", "topology of nodes, ranks and NICs");
    const rate = Math.max(0, ...t.nic_gbits);
    this.frame.subtitle(`${t.n_nodes} nodes · ${t.n_ranks} ranks · ${t.nics_per_node} NICs a node${rate ? ` at ${fmt.rate(rate)}` : ""}`);
    this.frame.badges(t.emulated ? [{ text: "emulated NIC", title: "NICs are shaped sockets of this machine" }] : []);
    this.frame.button("SVG", "Save this picture", () => this.save());
    this.frame.withTable("the topology", () => this.table());
    this.frame.body.classList.add("ccl-center");
    this.theme = readTheme(parent);
    this.link = new Link(session.spec.link, (change) => {
      if (change.cursor !== undefined) this.cursor = change.cursor;
      if (change.range) this.range = change.range;
      this.redraw();
    });
    this.range = this.link.state.range ?? null;
    this.build();
    const stops = [store?.listen(() => this.redraw()), session.listen(() => this.redraw())];
    watchTheme(this.parent, () => this.build(), signal);
    signal.addEventListener("abort", () => {
      for (const stop of stops) stop?.();
      this.link.close();
      cancelAnimationFrame(this.queued);
      this.queued = -1;
    });
  }

  private redraw(): void {
    if (this.queued === 0) this.queued = requestAnimationFrame(() => this.update());
  }

  private save(): void {
    this.svg.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    download("topology.svg", "data:image/svg+xml;charset=utf-8," + encodeURIComponent(this.svg.outerHTML));
  }

  private build(): void {
    this.theme = readTheme(this.parent);
    this.updates = [];
    const t = this.topology;
    const shown = Math.min(MAX_NODES, t.n_nodes);
    const ranks = Array.from({ length: shown }, (_, node) => t.node_of.flatMap((n: number, r: number) => (n === node ? [r] : [])) as number[]);
    const slots = Math.max(1, t.nics_per_node, Math.min(8, ...ranks.map((r) => r.length)));
    const cardW = slots * NIC_W + 2 * PAD;
    const perRow = Math.min(shown, shown <= 3 ? shown : 4);
    const rows = Math.ceil(shown / perRow);
    const railH = t.rails && t.nics_per_node ? t.nics_per_node * 9 + 12 : 26;
    const width = perRow * (cardW + 18) + 6;
    const height = rows * (CARD_H + railH + 16) + 8;
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "group", "aria-label": `${shown} nodes` });
    (svg as SVGElement & { style: CSSStyleDeclaration }).style.cssText = `display:block;max-width:${Math.round(width * 1.2)}px;margin:6px auto`;
    for (let row = 0; row < rows; row++) {
      const here = Math.min(perRow, shown - row * perRow);
      const y = 8 + row * (CARD_H + railH + 16);
      this.rails(svg, y + CARD_H, here, cardW, railH);
      for (let k = 0; k < here; k++) this.node(svg, row * perRow + k, ranks[row * perRow + k], 6 + k * (cardW + 18), y, cardW);
    }
    this.svg = svg;
    this.frame.body.replaceChildren(svg);
    if (shown < t.n_nodes) this.frame.body.append(h("div", { class: "ccl-note", style: "padding:4px 12px 8px" }, `the first ${shown} of ${fmt.count(t.n_nodes)} nodes; the table has all`));
    this.update();
  }

  private slotX(count: number, k: number, x: number, w: number): number {
    const step = (w - 2 * PAD) / Math.max(1, count);
    return x + PAD + step * (k + 0.5);
  }

  private rails(svg: SVGElement, y: number, nodes: number, cardW: number, height: number): void {
    const t = this.topology;
    if (!t.nics_per_node || t.n_nodes < 2) return;
    const right = 6 + nodes * (cardW + 18) - 18;
    const lines = t.rails ? t.nics_per_node : 1;
    for (let k = 0; k < lines; k++) {
      const ry = y + 10 + k * 9;
      svg.append(s("line", { x1: 6 + PAD, x2: right - PAD, y1: ry, y2: ry, stroke: this.theme.line, "stroke-width": 1.6 }));
      for (let node = 0; node < nodes; node++) {
        const nics = t.rails ? [k] : Array.from({ length: t.nics_per_node }, (_, i) => i);
        for (const nic of nics) {
          const x = this.slotX(t.nics_per_node, nic, 6 + node * (cardW + 18), cardW);
          svg.append(s("line", { x1: x, x2: x, y1: y, y2: ry, stroke: this.theme.line, "stroke-width": 1.6 }), s("circle", { cx: x, cy: ry, r: 2.6, fill: this.theme.faint }));
        }
      }
    }
    const words = t.rails ? `${lines} rails` : "switch";
    svg.append(s("text", { x: right - PAD, y: y + height + 3, "text-anchor": "end", "font-size": 10, fill: this.theme.faint }, words));
  }

  private node(svg: SVGElement, node: number, ranks: number[], x: number, y: number, w: number): void {
    const theme = this.theme;
    const card = s("g", { role: "group", "aria-label": `node ${node}` });
    card.append(
      s("rect", { x, y, width: w, height: CARD_H, rx: 10, fill: theme.ground, stroke: theme.line }),
      s("text", { x: x + PAD, y: y + 20, "font-size": 12, "font-weight": 600, fill: theme.ink }, `node ${node}`),
    );
    const fabricY = y + 74;
    card.append(s("rect", { x: x + PAD, y: fabricY, width: w - 2 * PAD, height: 5, rx: 2.5, fill: theme.raised, stroke: theme.line, "stroke-width": 0.7 }));
    card.append(s("text", { x: x + w - PAD, y: y + 20, "text-anchor": "end", "font-size": 10, fill: theme.faint }, `${this.topology.device || ""} fabric`.trim()));
    const shown = ranks.slice(0, 8);
    shown.forEach((rank, k) => this.rank(card, rank, this.slotX(shown.length, k, x, w), y + 32, fabricY));
    if (ranks.length > 8) card.append(s("text", { x: x + w - PAD, y: y + 70, "text-anchor": "end", "font-size": 9, fill: theme.faint }, `+ ${ranks.length - 8} ranks`));
    for (let nic = 0; nic < this.topology.nics_per_node; nic++) this.nic(card, node, nic, this.slotX(this.topology.nics_per_node, nic, x, w), y + 94, fabricY);
    svg.append(card);
  }

  /** Makes a group that can be clicked, focused and worked with the keyboard. */
  private hit(key: string, label: string, click: () => void): SVGElement {
    const group = s("g", { class: "hit", tabindex: 0, role: "button", "aria-label": label, "data-key": key, onclick: click });
    group.addEventListener("keydown", (event: any) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      event.stopPropagation();
      click();
    });
    return group;
  }

  private rank(card: SVGElement, rank: number, x: number, y: number, fabricY: number): void {
    const theme = this.theme;
    const group = this.hit(`r${rank}`, `rank ${rank}`, () => this.pickRank(rank));
    const edge = s("rect", { class: "edge", x: x - 27, y, width: 54, height: RANK_H, rx: 6, fill: theme.raised, stroke: theme.line });
    const name = s("text", { x, y: y + 17, "text-anchor": "middle", "font-size": 11.5, fill: theme.ink }, `rank ${rank}`);
    const state = s("text", { x, y: y + 22.5, "text-anchor": "middle", "font-size": 9, "font-weight": 600, fill: this.bad() });
    group.append(s("line", { x1: x, x2: x, y1: y + RANK_H, y2: fabricY, stroke: theme.line, "stroke-width": 1.6 }), edge, name, state);
    card.append(group);
    this.updates.push(() => {
      const found = this.store?.faults.rank(rank);
      name.setAttribute("y", String(found ? y + 12 : y + 17));
      state.textContent = found ? `${found.icon} ${found.state}` : "";
      edge.setAttribute("stroke", found ? this.bad() : theme.line);
      edge.setAttribute("stroke-dasharray", found && DEAD.has(found.state) ? "4 3" : "none");
      group.setAttribute("aria-label", found ? `rank ${rank}, ${found.state}` : `rank ${rank}`);
    });
  }

  private nic(card: SVGElement, node: number, nic: number, x: number, y: number, fabricY: number): void {
    const theme = this.theme;
    const w = NIC_W - 8;
    const group = this.hit(`n${node}.${nic}`, `node ${node} NIC ${nic}`, () => this.pickNic(node, nic));
    const title = s("text", { x: x - w / 2 + 6, y: y + 13, "font-size": 10, fill: theme.ink }, `NIC ${nic}`);
    const state = s("text", { x: x + w / 2 - 5, y: y + 13, "font-size": 9, "text-anchor": "end", fill: theme.faint }, "● up");
    const tag = this.tag(x, y + NIC_H, w);
    const edge = s("rect", { class: "edge", x: x - w / 2, y, width: w, height: NIC_H, rx: 6, fill: theme.ground, stroke: theme.line });
    group.append(s("line", { x1: x, x2: x, y1: fabricY + 5, y2: y + CARD_H - 94, stroke: theme.line, "stroke-width": 1.6 }), edge, title, state);
    const bars = (["tx", "rx"] as const).map((dir, k) => {
      const by = y + 19 + k * 15;
      const fill = s("rect", { x: x - w / 2 + 5, y: by, width: 0, height: 12, rx: 2 });
      // The number is written twice: in ink on the empty part, and, as far as the bar goes, in what reads on the bar.
      const at = { x: x - w / 2 + 9, y: by + 9.3, "font-size": 9.5 };
      const text = s("text", { ...at, fill: theme.ink });
      const id = `ccl-bar-${++barsMade}`;
      const clip = s("rect", { x: x - w / 2 + 5, y: by, width: 0, height: 12 });
      const over = s("text", { ...at, "clip-path": `url(#${id})`, "aria-hidden": "true" });
      group.append(s("rect", { x: x - w / 2 + 5, y: by, width: w - 10, height: 12, rx: 2, fill: theme.raised }), text, fill, s("clipPath", { id }, clip), over);
      return { dir, fill, text, clip, over };
    });
    group.append(tag);
    card.append(group);
    this.updates.push(() => this.updateNic(group, state, tag, edge, bars, node, nic, w - 10));
  }

  /** A filled strip below a NIC for the word of what is wrong with it. */
  private tag(x: number, y: number, w: number): SVGElement {
    const ink = this.theme.dark ? "#15181c" : "#ffffff";
    const text = s("text", { x, y: y + 8.6, "text-anchor": "middle", "font-size": 9, "font-weight": 600, fill: ink });
    return s("g", { visibility: "hidden" }, s("rect", { x: x - w / 2, y: y - 2, width: w, height: 14, rx: 4, fill: this.bad() }), text);
  }

  private updateNic(group: SVGElement, state: SVGElement, tag: SVGElement, edge: SVGElement, bars: Bar[], node: number, nic: number, width: number): void {
    const at = this.nics[node * this.topology.nics_per_node + nic];
    const look = this.lookOf(node, nic);
    const { word } = look;
    state.setAttribute("visibility", word === "up" ? "visible" : "hidden");
    tag.setAttribute("visibility", word === "up" ? "hidden" : "visible");
    tag.lastChild!.textContent = word === "up" ? "" : `${look.icon} ${word}`;
    edge.setAttribute("stroke-dasharray", DEAD.has(word) ? "4 3" : "none");
    edge.setAttribute("stroke", word === "up" ? this.theme.line : this.bad());
    const rate = this.topology.nic_gbits[node * this.topology.nics_per_node + nic] || Math.max(1e-9, ...this.topology.nic_gbits) || 1;
    const [a, b] = this.window();
    for (const bar of bars) {
      const value = at && b > a ? gbits(at[bar.dir], a, b) : 0;
      const share = Math.min(1, value / rate);
      for (const part of [bar.fill, bar.clip]) part.setAttribute("width", String(share * width));
      bar.fill.setAttribute("fill", viridisCss(share));
      bar.over.setAttribute("fill", inkOn(viridis(share)));
      const number = value.toFixed(value >= 100 ? 0 : rate < 1 ? 2 : 1);
      bar.over.textContent = bar.text.textContent = `${bar.dir === "tx" ? "↑" : "↓"} ${this.store ? number : "–"}`;
    }
    group.setAttribute("aria-label", `node ${node} NIC ${nic}, ${word}, ${bars.map((bar) => bar.text.textContent).join(" ")} Gb/s`);
  }

  private bad(): string {
    return this.theme.dark ? "#ff8a80" : "#b3261e";
  }

  private lookOf(node: number, nic: number): { icon: string; word: string } {
    const told = this.store?.faults.nic(node, nic);
    if (told) return { icon: told.icon, word: told.state };
    const listed = (this.session.status.faults ?? this.session.spec.data.faults ?? []) as any[];
    const found = listed.find((each) => each.node === node && each.nic === nic);
    const rates = this.topology.nic_gbits;
    const absent = rates[node * this.topology.nics_per_node + nic] === 0 && Math.max(...rates) > 0;
    const word = found?.state ?? (absent ? "down" : "up");
    return { icon: found?.icon ?? ICONS[word] ?? "!", word };
  }

  private window(): [number, number] {
    const end = this.store?.end ?? 0;
    const [t0, t1] = this.range ?? [0, end];
    if (this.cursor !== null) return [this.cursor - (t1 - t0) / 160, this.cursor + (t1 - t0) / 160];
    if (this.store?.live) return [end - LIVE_NS, end];
    return [Math.max(0, t0), Math.min(t1, end)];
  }

  private update(): void {
    this.queued = 0;
    if (this.store && this.shape !== this.store.shape) {
      this.shape = this.store.shape;
      this.nics = nicsOf(this.store, this.topology.n_nodes, this.topology.nics_per_node);
    }
    for (const each of this.updates) each();
    for (const el of this.svg.querySelectorAll(".hit")) el.classList.toggle("picked", el.getAttribute("data-key") === this.picked);
    if (this.store) {
      const words = this.cursor !== null ? `at ${fmt.time(this.cursor)}` : this.store.live ? "over the last 250 ms" : "mean over the visible time";
      const hint = this.session.spec.data.fault_menu && this.session.connected ? " · click a NIC or a rank to break it" : "";
      this.frame.legend([], [h("span", {}, `↑ sent ↓ received, Gb/s ${words}${hint}`)]);
    } else this.frame.legend([], [h("span", {}, "click a NIC or a rank to select it")]);
    this.frame.fillTable();
  }

  private pickNic(node: number, nic: number): void {
    this.picked = `n${node}.${nic}`;
    const name = this.session.spec.name ?? "trace";
    this.session.select({ source: this.store?.id ?? null, node, nic });
    this.session.act("nic", { node, nic });
    this.frame.code(this.store ? `${name}.where(node=${node}, track=["nic_tx", "nic_rx"], index=${nic})` : `${name}.nic_gbits[${node * this.topology.nics_per_node + nic}]`);
    this.frame.say(`node ${node} NIC ${nic}, ${this.lookOf(node, nic).word}, selected`);
    this.update();
    this.openMenu({ node, nic }, `node ${node} NIC ${nic} · ${this.lookOf(node, nic).word}`);
  }

  /** The menu of what can be done to a NIC or rank, where there is a world to do it to. */
  private openMenu(where: Record<string, number>, title: string): void {
    const menu = this.session.spec.data.fault_menu;
    const anchor = this.svg.querySelector(`[data-key="${this.picked}"]`);
    if (!menu || !anchor || !this.session.connected) return;
    const undoable = this.store?.faults.undoable(where) ?? [];
    faultMenu({ session: this.session, frame: this.frame, parent: this.parent, signal: this.signal, anchor, where, title, undoable });
  }

  private pickRank(rank: number): void {
    this.picked = `r${rank}`;
    const name = this.session.spec.name ?? "trace";
    this.session.select({ source: this.store?.id ?? null, rank });
    this.session.act("rank", { rank });
    this.frame.code(this.store ? `${name}.where(rank=${rank})` : `${name}.node_of[${rank}]`);
    this.frame.say(`rank ${rank} selected`);
    this.update();
    const found = this.store?.faults.rank(rank);
    this.openMenu({ rank }, `rank ${rank}${found ? ` · ${found.state}` : ""}`);
  }

  private table(): TableData {
    const t = this.topology;
    const rows: (string | number)[][] = [];
    const [a, b] = this.window();
    for (let node = 0; node < t.n_nodes && rows.length < 500; node++) {
      for (let nic = 0; nic < t.nics_per_node; nic++) {
        const at = this.nics[node * t.nics_per_node + nic];
        const rate = (dir: "tx" | "rx") => (at && b > a ? fmt.rate(gbits(at[dir], a, b)) : "–");
        const ranks = t.node_of.flatMap((n: number, r: number) => (n === node ? [r] : []));
        rows.push([`node ${node} NIC ${nic}`, `${ranks[0]}–${ranks.at(-1)}`, fmt.rate(t.nic_gbits[node * t.nics_per_node + nic] ?? 0), this.lookOf(node, nic).word, rate("tx"), rate("rx")]);
      }
    }
    return { head: ["NIC", "ranks of the node", "line rate", "state", "sent", "received"], rows };
  }
}
