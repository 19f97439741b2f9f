// The facts of a timeline in words: of one span, and of every lane.
//
// Is: text for tooltips, the live region and the table. Is not: drawing.
import * as fmt from "../draw/format";
import { CATEGORIES } from "../draw/palette";
import { SpanKindNames, SpanStatusNames, Track, TrackNames } from "../model/schema";
import { Use, Parts, useOf } from "../model/exposure";
import { partitionRows, share } from "../model/exposure_words";
import { Store } from "../model/store";
import { TableData } from "./frame";
import { markRows } from "./marks_paint";
import { Hit } from "./search";

/** What a tooltip says of a span. */
export function describe(store: Store, hit: Hit): { title: string; pairs: [string, string][] } {
  const { lane, row, i } = hit;
  const length = row.end[i] - row.begin[i];
  const name = CATEGORIES[row.cat[i]].name;
  const kind = SpanKindNames[row.kind[i]];
  const pairs: [string, string][] = [["rank", [`${lane.rank}`, ...(lane.node < 0 ? [] : [`node ${lane.node}`]), lane.label].join(" · ")]];
  if (row.op[i] >= 0) pairs.push(["op", `${row.op[i]}${row.step[i] >= 0 ? ` · step ${row.step[i]}` : ""}`]);
  else if (row.step[i] >= 0) pairs.push(["step", String(row.step[i])]);
  if (row.peer[i] >= 0) pairs.push([lane.track === Track.nic_rx ? "from rank" : "peer", String(row.peer[i])]);
  pairs.push(["begin", fmt.time(row.begin[i])], ["length", fmt.time(length)]);
  if (row.nbytes[i] > 0) pairs.push(["bytes", fmt.bytes(row.nbytes[i])]);
  if (row.nbytes[i] > 0 && length > 0) pairs.push(["rate", fmt.rate((row.nbytes[i] * 8) / length)]);
  const use = store.exposure.ranks.get(lane.rank);
  if (use && length > 0 && useOf(lane, row, i) === Use.comm) {
    const exposed = use.exposed.within(row.begin[i], row.end[i]);
    pairs.push(["exposed", `${fmt.time(exposed)} (${share(exposed, length)})`]);
  }
  if (row.status[i] !== 0) pairs.push(["status", `⚠ ${SpanStatusNames[row.status[i]]}`]);
  return { title: kind === name ? kind : `${kind} · ${name}`, pairs };
}

/** What a tooltip says of a moment of a rank whose time is stacked. */
export function stackFacts(store: Store, rank: number, t: number): { title: string; pairs: [string, string][] } | null {
  const use = store.exposure.ranks.get(rank);
  if (!use || t < use.begin || t > use.end) return null;
  const { word, begin, end } = use.at(t);
  const under = use.comm.within(begin, end);
  const pairs: [string, string][] = [["rank", String(rank)], ["begin", fmt.time(begin)], ["length", fmt.time(end - begin)]];
  if (word === "computation") pairs.push(["communication under it", fmt.time(under)]);
  return { title: word, pairs };
}

/** The Python that selects a range and lanes. */
export function selectionPython(name: string, store: Store, range: number[] | null, picked: Set<number>): string {
  const origin = BigInt(store.meta.origin_ns ?? 0);
  const between = range ? `.between(${origin + BigInt(Math.floor(range[0]))}, ${origin + BigInt(Math.ceil(range[1]))})` : "";
  const lanes = [...picked].map((id) => store.lanes[id]);
  if (!lanes.length) return name + between;
  const unique = (f: (k: number) => number | string) => [...new Set(lanes.map((_, k) => f(k)))].join(", ");
  const filters = [`rank=[${unique((k) => lanes[k].rank)}]`, `track=[${unique((k) => `"${TrackNames[lanes[k].track]}"`)}]`, `index=[${unique((k) => lanes[k].index)}]`];
  return `${name}${between}.where(${filters.join(", ")})`;
}

/** The table that says what the picture shows: the partition of each rank where there is one, and a row per lane. */
export function laneFacts(store: Store, parts: Parts[]): TableData {
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
  const lanes = { head: ["lane", "node", "spans", "busy", "share of time", "bytes"], rows: rows.slice(0, 500), also: markRows(store.faults.shown()) };
  return parts.length ? { ...partitionRows(parts), also: lanes } : lanes;
}
