// The faults of a running world: what is broken now and can be undone, and what the engine found and did about it.
//
// Is: a list with the Python of each fault, a log of events with their evidence, buttons that Python answers. Is not: a
// decision; Python decides. In an exported file it shows how things stood.
import { h } from "../draw/dom";
import * as fmt from "../draw/format";
import { Active, Mark, sinceCause } from "../model/faults";
import { FAULT_ACTS, Session, ViewSpec } from "../model/session";
import { Store } from "../model/store";
import { Frame, copyText } from "./frame";

const LOG_ROWS = 200;

export class FaultsView {
  readonly frame: Frame;
  private list = h("ul", { class: "ccl-faults", "aria-label": "faults that can be undone" });
  private log = h("ol", { class: "ccl-log", role: "log", tabindex: "0", "aria-label": "what happened, newest first" });
  private note = h("span", { class: "ccl-note", role: "status" });
  private heal: HTMLButtonElement;
  private drawn = -2;
  private announced = 0;

  constructor(readonly session: Session, readonly store: Store, readonly spec: ViewSpec, readonly signal: AbortSignal) {
    this.frame = new Frame(spec.title ?? "Faults", "faults and recovery");
    this.frame.body.append(this.list, this.log);
    this.frame.foot.remove();
    this.frame.control(this.note);
    this.heal = this.frame.button("↺ heal all", "Undo every fault", () => this.act("heal", {}, `${this.world}.faults.heal()`));
    this.frame.withTable("what happened", () => ({
      head: ["time", "after the cause", "what", "where", "paths", "evidence"],
      rows: this.store.faults.marks.map((m) => [this.time(m), this.since(m), `${m.icon} ${m.word}`, m.where, m.count, m.text]),
    }));
    this.announced = store.faults.marks.length;
    const stops = [store.listen(() => this.draw()), session.listen(() => this.draw())];
    signal.addEventListener("abort", () => stops.forEach((stop) => stop()));
    this.draw();
  }

  private get world(): string {
    return this.session.spec.data.world ?? "world";
  }

  private act(name: string, args: Record<string, unknown>, python: string): void {
    this.session.act(name, args);
    this.frame.code(python);
  }

  private draw(): void {
    const { faults } = this.store;
    const { session } = this;
    const said = FAULT_ACTS.has(session.noteOf) ? session.note : "";
    this.note.textContent = said && session.failed ? `⚠ ${said}` : said;
    this.note.title = said;
    this.note.classList.toggle("busy", !!said && (session.failed || said.startsWith("kernel busy")));
    const times = faults.shown().length;
    const key = faults.version * 2 + (times ? 1 : 0);
    if (key === this.drawn) return;
    this.drawn = key;
    const words = faults.summary();
    this.frame.subtitle(words || (session.connected ? "all NICs up · click a NIC or a rank above to break it" : "all NICs up"));
    this.heal.disabled = !session.connected || !faults.active.some((each) => each.undo);
    this.heal.style.display = session.connected ? "" : "none";
    this.list.replaceChildren(...faults.active.map((each) => this.row(each)));
    this.list.style.display = faults.active.length ? "" : "none";
    const marks = faults.marks.slice(-LOG_ROWS);
    this.log.replaceChildren(...marks.reverse().map((mark) => this.line(mark)));
    this.log.style.display = marks.length ? "" : "none";
    this.frame.body.style.display = faults.active.length || marks.length ? "" : "none";
    this.frame.fillTable();
    this.announce(faults.marks);
  }

  /** Says verdicts, losses and recoveries to those who do not see them. */
  private announce(marks: Mark[]): void {
    const fresh = marks.slice(this.announced);
    this.announced = marks.length;
    if (fresh.length) this.frame.say(fresh.map((mark) => `${mark.word}, ${mark.where}`).join("; "));
  }

  private row(fault: Active): HTMLElement {
    const copy = h("button", { type: "button", "aria-label": `Copy ${fault.python}`, onclick: () => copyText(copy, fault.python) }, "Copy");
    const undo = h("button", { type: "button", "aria-label": `Undo ${fault.word}, ${fault.where}` }, "↺ undo");
    undo.addEventListener("click", () => this.act("undo", { number: fault.number }, `${this.world}.faults.undo(${fault.number})`));
    const hits = fault.fired === null ? "" : `${fmt.count(fault.fired)} hit${fault.fired === 1 ? "" : "s"}`;
    const word = h("b", {}, `⚡ ${fault.word}`);
    const end = fault.undo ? undo : h("span", { class: "ccl-note" }, "no undo");
    return h("li", {}, word, h("span", {}, fault.where), h("code", {}, fault.python), copy, h("span", { class: "ccl-note" }, hits), ...(this.session.connected ? [end] : []));
  }

  private line(mark: Mark): HTMLElement {
    const word = h("b", { class: mark.look }, `${mark.icon} ${mark.word}${mark.count > 1 ? ` ×${mark.count}` : ""}`);
    return h("li", {}, h("time", {}, this.time(mark)), h("time", { class: "since", title: "since the fault or undo before it" }, this.since(mark)), word, h("span", {}, mark.where), h("span", { class: "ccl-why" }, mark.text));
  }

  private time(mark: Mark): string {
    if (this.store.live && !this.store.spans) return "–";
    return mark.t >= 1e9 ? `${(mark.t / 1e9).toFixed(4)} s` : fmt.time(mark.t);
  }

  private since(mark: Mark): string {
    const ns = sinceCause(this.store.faults.marks, mark);
    return ns === null ? "" : `+${fmt.time(ns)}`;
  }
}
