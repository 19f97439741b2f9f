// The answer above the picture: what of the communication is exposed, in one sentence, and the op that exposes most.
//
// Is: text of the whole trace, of a live window, or of the range that is selected; a button that goes to the worst op.
// Is not: the measuring (model/exposure). Invariant: numbers of a whole trace are Python's, exact to the nanosecond.
import { h } from "../draw/dom";
import * as fmt from "../draw/format";
import { Parts, WorstOp } from "../model/exposure";
import { effectiveCommTime, overlapOf, sentence } from "../model/exposure_words";
import { emulatedDevice } from "../model/store";
import type { Hit } from "./search";
import type { Timeline } from "./timeline";

export interface Told {
  ranks: Parts[];
  words: string;
  worst: WorstOp | null;
  /** Where two traces are compared, with the better computation of the two taken away. */
  ect_ns?: number;
  label?: string;
}

let ids = 0;

/** What to ask of Python for the spans of the op that exposes most: on its rank and where its bytes arrive. */
export function worstPython(name: string, worst: WorstOp): string {
  const of = worst.coll_id === undefined ? "" : `, coll_id=${worst.coll_id}`;
  return worst.op >= 0 ? `${name}.where(op_id=${worst.op}${of})` : `${name}.where(rank=${worst.rank}${of})`;
}

export function worstSelection(source: string, worst: WorstOp): Record<string, unknown> {
  const { rank, op, coll_id } = worst;
  return { source, rank, ...(op >= 0 ? { op_id: op } : {}), ...(coll_id === undefined ? {} : { coll_id }) };
}

export class Words {
  private text = h("p", { id: `ccl-words-${++ids}` });
  private chips = h("span", { class: "ccl-chips" });
  private root = h("div", { class: "ccl-words" }, this.text, this.chips);
  private shown = "";

  constructor(private t: Timeline) {
    t.frame.root.insertBefore(this.root, t.frame.body);
    t.frame.root.setAttribute("aria-describedby", this.text.id);
  }

  private get told(): Told | null {
    return this.t.session.spec.data?.exposure?.[this.t.store.id] ?? null;
  }

  /** The partition of what is asked about: the selected range, else all. */
  parts(): Parts[] {
    const { drag, store } = this.t;
    if (drag) return store.exposure.parts(Math.min(...drag), Math.max(...drag));
    return this.told?.ranks ?? store.exposure.parts();
  }

  /** Makes the text anew where it could have changed. */
  update(): void {
    const { store, drag } = this.t;
    this.root.style.display = store.computes ? "" : "none";
    if (!store.computes) return;
    const key = `${store.exposure.version}/${drag}/${emulatedDevice(store.meta)}`;
    if (key === this.shown) return;
    this.shown = key;
    const parts = this.parts();
    const where = drag ? `In the selected ${fmt.time(Math.abs(drag[1] - drag[0]))}: ` : "";
    this.text.textContent = where + (!drag && this.told ? this.told.words : sentence(parts));
    const overlap = overlapOf(parts);
    const chips = [h("span", { class: "ccl-badge", title: "communication that runs under computation, all ranks together" }, overlap === null ? "no communication" : `overlap ${overlap.toFixed(1)} %`)];
    if (!drag) chips.push(h("span", { class: "ccl-badge", title: "effective communication time: the whole time minus the computation (Flux, arXiv 2406.06858)" }, `ECT ${fmt.time(this.told?.ect_ns ?? effectiveCommTime(parts))}`));
    const worst = this.told?.worst ?? store.exposure.worst;
    this.chips.replaceChildren(...chips, ...(worst && !drag ? [this.button(worst)] : []));
  }

  /** The sentence as it stands, for the live region. */
  get sentence(): string {
    return this.t.store.computes ? this.text.textContent ?? "" : "";
  }

  private button(worst: WorstOp): HTMLElement {
    const words = `worst: ${worst.name}, rank ${worst.rank}, ${fmt.time(worst.exposed_ns)} exposed`;
    const button = h("button", { type: "button", "aria-label": `Go to the op that exposes most: ${words}`, title: "Go to the op that exposes most" }, words);
    button.addEventListener("click", () => this.go(worst));
    return button;
  }

  private go(worst: WorstOp): void {
    const { t } = this;
    const hit = find(t, worst);
    const length = worst.end - worst.begin;
    if (length / (t.t1 - t.t0) < 0.02 || worst.begin < t.t0 || worst.end > t.t1) t.setRange(worst.begin - length * 6, worst.end + length * 6);
    if (hit) t.reveal(hit);
    t.session.select(worstSelection(t.store.id, worst));
    t.frame.code(worstPython(t.session.spec.name ?? "trace", worst));
    t.frame.say(`${worst.name} of rank ${worst.rank}: ${fmt.time(worst.exposed_ns)} of its ${fmt.time(worst.busy_ns)} are exposed`);
  }
}

/** The span of the worst op in the picture. */
function find(t: Timeline, worst: WorstOp): Hit | null {
  for (const lane of t.store.lanes) {
    if (lane.rank !== worst.rank) continue;
    for (const row of lane.rows) {
      const i = row.at((worst.begin + worst.end) / 2, 0);
      if (i >= 0 && row.op[i] === worst.op && Math.abs(row.begin[i] - worst.begin) <= 1 && Math.abs(row.end[i] - worst.end) <= 1) return { lane, row, i, t: row.begin[i] };
    }
  }
  return null;
}
