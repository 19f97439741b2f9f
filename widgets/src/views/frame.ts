// What every view has around its picture: title, badges, buttons, legend, the same facts as a table, the Python that
// does the same, a help card, a tooltip and a live region for those who do not see the picture.
//
// Is: the shared chrome. Is not: any one picture.
import { h } from "../draw/dom";
import { escape } from "../draw/format";
import { CATEGORIES } from "../draw/palette";
import { emulatedDevice } from "../model/store";

export interface TableData {
  head: string[];
  rows: (string | number)[][];
  /** A table below, of other facts. */
  also?: TableData;
}

function tableHtml({ head, rows }: TableData): string {
  const cells = (tag: string, values: (string | number)[]) => values.map((v) => `<${tag}>${escape(String(v))}</${tag}>`).join("");
  return `<table><thead><tr>${cells("th", head)}</tr></thead><tbody>${rows.map((row) => `<tr>${cells("td", row)}</tr>`).join("")}</tbody></table>`;
}

/** Copies, and says on the button that it did. */
export async function copyText(button: HTMLButtonElement, text: string): Promise<void> {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", {}, text);
    button.after(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
  }
  button.textContent = done ? "Copied" : "Press Ctrl+C";
  setTimeout(() => (button.textContent = "Copy"), 1200);
}

export class Frame {
  readonly root = h("section", { class: "ccl-view" });
  readonly head = h("div", { class: "ccl-head" });
  readonly body = h("div", { class: "ccl-body" });
  readonly foot = h("div", { class: "ccl-foot" });
  private badgeBox = h("span", { style: "display:inline-flex;gap:6px;flex-wrap:wrap" });
  private sub = h("span", { class: "ccl-sub" });
  private buttons = h("span", { style: "display:inline-flex;gap:6px;align-items:center;flex-wrap:wrap" });
  private live = h("div", { class: "ccl-live", role: "status", "aria-live": "polite" });
  private codeBox = h("div", { class: "ccl-code" });
  private codeText = h("code");
  private tableBox = h("div", { class: "ccl-table", tabindex: "0", role: "region" });
  private tipBox = h("div", { class: "ccl-tip", role: "tooltip" });
  private helpBox = h("div", { class: "ccl-help", role: "note" });
  private legendBox = h("span", { style: "display:inline-flex;gap:4px 14px;flex-wrap:wrap" });
  private table: (() => TableData) | null = null;

  constructor(title: string, label: string) {
    this.root.setAttribute("aria-label", label);
    this.head.append(h("span", { class: "ccl-title" }, title), this.sub, this.badgeBox, h("span", { class: "ccl-gap" }), this.buttons);
    this.foot.append(this.legendBox);
    const copy = h("button", { type: "button", onclick: () => copyText(copy, this.codeText.textContent ?? "") }, "Copy");
    this.codeBox.append(h("span", { class: "ccl-note" }, "in Python"), this.codeText, copy);
    this.root.append(this.head, this.body, this.codeBox, this.foot, this.tableBox, this.live, this.helpBox, this.tipBox);
  }

  subtitle(text: string): void {
    this.sub.textContent = text;
  }

  badges(list: { text: string; bad?: boolean; title?: string }[]): void {
    this.badgeBox.replaceChildren(
      ...list.map((b) => h("span", { class: b.bad ? "ccl-badge bad" : "ccl-badge", title: b.title }, b.text)),
    );
  }

  button(text: string, title: string, click: (button: HTMLButtonElement) => void, attributes: Record<string, string> = {}): HTMLButtonElement {
    const button = h("button", { type: "button", title, "aria-label": title, ...attributes }, text);
    button.addEventListener("click", () => click(button));
    this.buttons.append(button);
    return button;
  }

  control(el: HTMLElement): void {
    this.buttons.append(el);
  }

  legend(categories: Iterable<number>, more: Node[] = []): void {
    const seen = [...categories].sort((a, b) => a - b);
    this.legendBox.replaceChildren(
      ...seen.map((c) => h("span", { class: "ccl-key" }, h("i", { style: `background:${CATEGORIES[c].color}` }), CATEGORIES[c].name)),
      ...more,
    );
  }

  /** Offers the same facts as a table; `facts` is asked when the table is opened. */
  withTable(name: string, facts: () => TableData): void {
    this.table = facts;
    this.tableBox.setAttribute("aria-label", `${name} as a table`);
    this.button("Table", `Show ${name} as a table`, (button) => {
      const on = this.tableBox.classList.toggle("on");
      button.setAttribute("aria-pressed", String(on));
      if (on) this.fillTable();
    }, { "aria-pressed": "false" });
  }

  fillTable(): void {
    if (!this.table || !this.tableBox.classList.contains("on")) return;
    const first = this.table();
    let [html, table]: [string, TableData | undefined] = ["", first];
    for (; table; table = table.also) if (table === first || table.rows.length) html += tableHtml(table);
    this.tableBox.innerHTML = html;
  }

  code(text: string): void {
    this.codeText.textContent = text;
    this.codeBox.classList.add("on");
  }

  get shownCode(): string {
    return this.codeText.textContent ?? "";
  }

  say(text: string): void {
    this.live.textContent = text;
  }

  /** Shows (or with null hides) the tooltip near a point of the page. */
  tip(html: string | null, x = 0, y = 0): void {
    if (html === null) {
      this.tipBox.style.display = "none";
      return;
    }
    this.tipBox.innerHTML = html;
    this.tipBox.style.display = "block";
    const host = this.root.offsetParent?.getBoundingClientRect() ?? { left: 0, top: 0, width: innerWidth };
    const width = this.tipBox.offsetWidth;
    const left = Math.min(x - host.left + 14, Math.max(0, host.width - width - 8));
    this.tipBox.style.left = `${left}px`;
    const below = y + 18 + this.tipBox.offsetHeight < innerHeight;
    this.tipBox.style.top = `${y - host.top + (below ? 16 : -this.tipBox.offsetHeight - 12)}px`;
  }

  help(rows: [string, string][]): void {
    this.helpBox.innerHTML = `<dl>${rows.map(([k, v]) => `<dt>${k.split(" ").map((x) => `<kbd>${escape(x)}</kbd>`).join(" ")}</dt><dd>${escape(v)}</dd>`).join("")}</dl>`;
    this.button("?", "Keys and mouse", () => this.toggleHelp());
  }

  toggleHelp(): void {
    this.helpBox.classList.toggle("on");
  }
}

export function facts(title: string, pairs: [string, string][]): string {
  return `<b>${escape(title)}</b><dl>${pairs.map(([k, v]) => `<dt>${escape(k)}</dt><dd>${escape(v)}</dd>`).join("")}</dl>`;
}

/** What hatching means, for a legend. */
export function exposedKey(): HTMLElement {
  return h("span", { class: "ccl-key", title: "communication while no computation of that rank runs" }, h("i", { class: "ccl-hatch" }), "exposed communication");
}

/** What a source is, so that no picture of a model is taken for a measurement. */
export function sourceBadges(meta: Record<string, any>, drops: number, live: boolean): { text: string; bad?: boolean; title?: string }[] {
  const out: { text: string; bad?: boolean; title?: string }[] = [];
  if (live) out.push({ text: "● live" });
  if (meta.source === "simulated") out.push({ text: "simulated", title: "times come from modelled links" });
  if (meta.source === "imported") out.push({ text: "imported" });
  if (meta.source === "measured") out.push({ text: "measured" });
  if (emulatedDevice(meta)) out.push({ text: "emulated device", title: "computation is a timer that stands for a device; it uses no core" });
  if (meta.emulated ?? meta.topology?.emulated) out.push({ text: "emulated NIC", title: "NICs are shaped sockets of this machine" });
  const lost = Math.max(drops, Number(meta.drops ?? 0));
  if (lost > 0) out.push({ text: `${lost} spans dropped`, bad: true, title: "the ring of a rank was full; raise CCL_LAB_TRACE_SPANS" });
  return out;
}
