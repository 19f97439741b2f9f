// The facts of a timeline in words: of one span, and of every lane.
//
// Is: text for tooltips, the live region and the table. Is not: drawing.
import * as fmt from "../draw/format";
import { CATEGORIES } from "../draw/palette";
import { SpanKindNames, SpanStatusNames, Track } from "../model/schema";
import { Store } from "../model/store";
import { TableData } from "./frame";
import { Hit } from "./search";

/** What a tooltip says of a span. */
export function describe(hit: Hit): { title: string; pairs: [string, string][] } {
  const { lane, row, i } = hit;
  const length = row.end[i] - row.begin[i];
  const name = CATEGORIES[row.cat[i]].name;
  const kind = SpanKindNames[row.kind[i]];
  const pairs: [string, string][] = [["rank", `${lane.rank} · node ${lane.node} · ${lane.label}`]];
  if (row.op[i] >= 0) pairs.push(["op", `${row.op[i]}${row.step[i] >= 0 ? ` · step ${row.step[i]}` : ""}`]);
  else if (row.step[i] >= 0) pairs.push(["step", String(row.step[i])]);
  if (row.peer[i] >= 0) pairs.push([lane.track === Track.nic_rx ? "from rank" : "peer", String(row.peer[i])]);
  pairs.push(["begin", fmt.time(row.begin[i])], ["length", fmt.time(length)]);
  if (row.nbytes[i] > 0) pairs.push(["bytes", fmt.bytes(row.nbytes[i])]);
  if (row.nbytes[i] > 0 && length > 0) pairs.push(["rate", fmt.rate((row.nbytes[i] * 8) / length)]);
  if (row.status[i] !== 0) pairs.push(["status", `⚠ ${SpanStatusNames[row.status[i]]}`]);
  return { title: kind === name ? kind : `${kind} · ${name}`, pairs };
}

/** The table that says what the picture shows: a row per lane. */
export function laneFacts(store: Store): TableData {
  const rows: (string | number)[][] = [];
  for (const lane of store.lanes) {
    let [spans, busy, moved] = [0, 0, 0];
    for (const row of lane.rows) {
      spans += row.n;
      for (let i = 0; i < row.n; i++) {
        busy += row.end[i] - row.begin[i];
        moved += row.nbytes[i];
      }
    }
    if (spans) rows.push([`rank ${lane.rank} · ${lane.label}`, lane.node, fmt.count(spans), fmt.time(busy), `${((100 * busy) / Math.max(1, store.end)).toFixed(1)} %`, fmt.bytes(moved)]);
  }
  return { head: ["lane", "node", "spans", "busy", "share of time", "bytes"], rows: rows.slice(0, 500) };
}
