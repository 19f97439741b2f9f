// The ops that changed most between two traces, as bars and numbers.
//
// Is: a table. Is not: the join, which Python made. A click finds the op in both timelines above.
import { h } from "../draw/dom";
import * as fmt from "../draw/format";
import { Session, ViewSpec } from "../model/session";
import { Frame } from "./frame";

function signed(ns: number): string {
  return `${ns > 0 ? "+" : ns < 0 ? "−" : ""}${fmt.time(Math.abs(ns))}`;
}

export function changesView(session: Session, spec: ViewSpec): HTMLElement {
  const data = session.spec.data.changes;
  const frame = new Frame(spec.title ?? "Largest changes", "ops that changed most");
  const [before, after] = data.labels;
  const parts = [`${fmt.count(data.joined)} ops in both`, data.only_a ? `${data.only_a} only ${before}` : "", data.only_b ? `${data.only_b} only ${after}` : ""];
  frame.subtitle(parts.filter(Boolean).join(" · "));
  const most = Math.max(1, ...data.rows.map((row: any) => Math.abs(row.delta)));
  const body = h("tbody");
  for (const row of data.rows) {
    const up = row.delta > 0;
    const bar = h("span", { style: `display:inline-block;height:8px;border-radius:2px;width:${((70 * Math.abs(row.delta)) / most).toFixed(1)}px;margin-right:6px;background:${up ? "#D55E00" : "#0072B2"}` });
    const change = h("td", { class: up ? "up" : "down" }, bar, `${up ? "▲" : "▼"} ${signed(row.delta)}`);
    const cells = [`${row.op}`, `${row.rank}`, row.kind, row.track, row.step >= 0 ? `${row.step}` : "–", row.peer >= 0 ? `${row.peer}` : "–", fmt.time(row.a), fmt.time(row.b)];
    const tr = h("tr", { tabindex: "0", style: "cursor:pointer" }, ...cells.map((text) => h("td", {}, text)), change, h("td", {}, signed(row.moved)));
    const pick = () => {
      session.select({ source: "b", op_id: row.op, rank: row.rank });
      frame.code(`trace.where(op_id=${row.op}, rank=${row.rank})`);
    };
    tr.addEventListener("click", pick);
    tr.addEventListener("keydown", (event) => event.key === "Enter" && pick());
    body.append(tr);
  }
  const head = ["op", "rank", "kind", "track", "step", "peer", before, after, "change", "begin moved"];
  const table = h("table", {}, h("thead", {}, h("tr", {}, ...head.map((text) => h("th", { scope: "col" }, text)))), body);
  frame.body.append(h("div", { style: "overflow:auto;max-height:340px" }, table));
  frame.foot.remove();
  return frame.root;
}
