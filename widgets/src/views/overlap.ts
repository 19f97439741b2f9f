// What is exposed: a stacked bar per rank (computation, exposed communication, exposed copies, idle), the numbers beside it,
// one sentence above; of two traces each rank has two bars on one scale.
//
// Is: the numbers Python told, as bars and a table. Is not: a timeline. Invariant: exposed is hatched and in words besides.
import { h } from "../draw/dom";
import * as fmt from "../draw/format";
import { CATEGORIES, COMPUTE, COPY } from "../draw/palette";
import { readTheme, watchTheme } from "../draw/theme";
import { Parts } from "../model/exposure";
import { effectiveCommTime, overlapOf, partitionRows, share } from "../model/exposure_words";
import { Session, ViewSpec } from "../model/session";
import { Frame, exposedKey, facts, sourceBadges } from "./frame";
import { Told, worstPython, worstSelection } from "./timeline_words";

const MAX_ROWS = 32;
const SEGMENTS: [keyof Parts, string, string][] = [
  ["compute_ns", "compute", "compute"],
  ["exposed_comm_ns", "comm", "exposed communication"],
  ["exposed_memcpy_ns", "memcpy", "exposed copies"],
  ["idle_ns", "idle", "idle"],
];

class OverlapView {
  readonly frame: Frame;
  private sources: string[];
  private labels: string[];

  constructor(private session: Session, private spec: ViewSpec, parent: HTMLElement, signal: AbortSignal) {
    this.sources = spec.sources;
    this.labels = spec.labels ?? [];
    this.frame = new Frame(spec.title ?? "Overlap", "what of the communication is exposed, per rank");
    this.frame.withTable("the partition", () => this.table());
    watchTheme(parent, () => readTheme(parent), signal);
    this.build();
  }

  private told(source: string): Told {
    return this.session.spec.data.exposure[source];
  }

  private get two(): boolean {
    return this.sources.length > 1;
  }

  private build(): void {
    const { frame } = this;
    const metas = this.sources.map((source) => this.spec.metas?.[source] ?? this.session.stores.get(source)?.meta ?? {});
    const badges = metas.flatMap((meta) => sourceBadges(meta, 0, false));
    frame.badges(badges.filter((badge, i) => badges.findIndex((each) => each.text === badge.text) === i));
    const words = this.two ? this.session.spec.data.exposure.difference : this.told(this.sources[0]).words;
    const text = h("p", { id: `ccl-overlap-${Math.random().toString(36).slice(2)}` }, words);
    frame.root.setAttribute("aria-describedby", text.id);
    frame.root.insertBefore(h("div", { class: "ccl-words" }, text, this.chips()), frame.body);
    frame.body.append(this.bars());
    const key = (name: string, color: string) => h("span", { class: "ccl-key" }, h("i", { style: `background:${color}` }), name);
    frame.legend([], [key("compute", CATEGORIES[COMPUTE].color), exposedKey(), key("exposed copies", CATEGORIES[COPY].color), h("span", { class: "ccl-key" }, h("i", { class: "ccl-seg idle" }), "idle")]);
  }

  private chips(): HTMLElement {
    const box = h("span", { class: "ccl-chips" });
    for (const [k, source] of this.sources.entries()) {
      const { ranks, worst, ect_ns: ect = effectiveCommTime(ranks) } = this.told(source);
      const name = this.two ? `${this.labels[k]}: ` : "";
      const overlap = overlapOf(ranks);
      box.append(h("span", { class: "ccl-badge", title: "communication that runs under computation; effective communication time, the whole time minus the computation at its best" }, `${name}overlap ${overlap === null ? "–" : `${overlap.toFixed(1)} %`} · ECT ${fmt.time(ect)}`));
      if (!worst) continue;
      const words = `${name}worst: ${worst.name}, rank ${worst.rank}, ${fmt.time(worst.exposed_ns)} exposed`;
      box.append(h("button", { type: "button", "aria-label": `Select the op that exposes most: ${words}`, title: "Select the op that exposes most", onclick: () => this.pick(source) }, words));
    }
    return box;
  }

  private pick(source: string): void {
    const worst = this.told(source).worst!;
    this.session.select(worstSelection(source, worst));
    this.frame.code(worstPython(this.session.spec.name ?? "trace", worst));
    this.frame.say(`${worst.name} of rank ${worst.rank}: ${fmt.time(worst.exposed_ns)} of its ${fmt.time(worst.busy_ns)} are exposed`);
  }

  /** Ranks by what they expose most in any source; in order of their numbers. */
  private shown(): { ranks: number[]; left: number } {
    const most = new Map<number, number>();
    for (const source of this.sources) for (const p of this.told(source).ranks) most.set(p.rank, Math.max(most.get(p.rank) ?? 0, p.exposed_comm_ns));
    const ranks = [...most.entries()].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, MAX_ROWS).map(([rank]) => rank);
    return { ranks: ranks.sort((a, b) => a - b), left: most.size - Math.min(most.size, MAX_ROWS) };
  }

  private bars(): HTMLElement {
    const scale = Math.max(1, ...this.sources.flatMap((source) => this.told(source).ranks.map((p) => p.total_ns)));
    const { ranks, left } = this.shown();
    const grid = h("div", { class: this.two ? "ccl-bars two" : "ccl-bars" });
    for (const rank of ranks) {
      for (const [k, source] of this.sources.entries()) {
        const parts = this.told(source).ranks.find((p) => p.rank === rank);
        if (parts) grid.append(...this.row(parts, k, scale));
      }
    }
    if (left) grid.append(h("span", { class: "ccl-note more" }, `${left} more ranks, which expose less: see the table`));
    return grid;
  }

  private row(parts: Parts, k: number, scale: number): HTMLElement[] {
    const first = k === 0 ? `rank ${parts.rank}` : "";
    const name = this.two ? [h("span", { class: "ccl-rank" }, first), h("span", { class: "ccl-which" }, this.labels[k])] : [h("span", { class: "ccl-rank" }, `rank ${parts.rank}`)];
    const said = SEGMENTS.filter(([field]) => parts[field] > 0).map(([field, , word]) => `${word} ${fmt.time(parts[field])}`);
    const bar = h("span", { class: "ccl-bar", role: "img", "aria-label": `rank ${parts.rank}${this.two ? `, ${this.labels[k]}` : ""}: ${said.join(", ")}` });
    for (const [field, class_] of SEGMENTS) {
      if (parts[field] <= 0) continue;
      bar.append(h("i", { class: `ccl-seg ${class_}`, style: `width:${((100 * parts[field]) / scale).toFixed(3)}%` }));
    }
    const tip = facts(`rank ${parts.rank}${this.two ? ` · ${this.labels[k]}` : ""}`, [
      ...SEGMENTS.map(([field, , word]): [string, string] => [word, `${fmt.time(parts[field])} (${share(parts[field], parts.total_ns)})`]),
      ["communication", fmt.time(parts.comm_ns)],
      ["overlap", parts.comm_ns ? share(parts.overlapped_ns, parts.comm_ns) : "–"],
    ]);
    bar.addEventListener("pointermove", (event) => this.frame.tip(tip, event.clientX, event.clientY));
    bar.addEventListener("pointerleave", () => this.frame.tip(null));
    const number = h("span", { class: "ccl-number" }, `${fmt.time(parts.exposed_comm_ns)} exposed`, h("small", {}, parts.comm_ns ? `${share(parts.overlapped_ns, parts.comm_ns)} hidden` : "no communication"));
    return [...name, bar, number];
  }

  private table() {
    const tables = this.sources.map((source, k) => {
      const { head, rows } = partitionRows(this.told(source).ranks);
      return this.two ? { head: ["trace", ...head], rows: rows.map((row) => [this.labels[k], ...row]) } : { head, rows };
    });
    return { head: tables[0].head, rows: tables.flatMap((table) => table.rows) };
  }
}

export function overlapView(session: Session, spec: ViewSpec, root: HTMLElement, signal: AbortSignal): HTMLElement {
  return new OverlapView(session, spec, root, signal).frame.root;
}
