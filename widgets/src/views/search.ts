// The little language of the search box: words that a span must match.
//
//   reduce            a kind              rank:3 peer:2 step:4 node:1 nic:0 channel:1 op:12
//   42                op 42               failed, aborted   how it ended
//
// Is: text -> predicate over (row, index). Is not: fuzzy.
import { SpanKindNames, SpanStatusNames, Track } from "../model/schema";
import { Row } from "../model/row";
import { Lane, Store } from "../model/store";

export type Predicate = (lane: Lane, row: Row, i: number) => boolean;

const NUMBERS: Record<string, (lane: Lane, row: Row, i: number) => number> = {
  rank: (lane) => lane.rank,
  node: (lane) => lane.node,
  nic: (lane) => (lane.track === Track.nic_tx || lane.track === Track.nic_rx ? lane.index : -1),
  channel: (lane) => (lane.track === Track.channel ? lane.index : -1),
  op: (_, row, i) => row.op[i],
  op_id: (_, row, i) => row.op[i],
  peer: (_, row, i) => row.peer[i],
  step: (_, row, i) => row.step[i],
};

function term(word: string): Predicate | null {
  if (/^\d+$/.test(word)) return (_, row, i) => row.op[i] === Number(word);
  const match = /^([a-z_]+)[:=]?(-?\d+)$/.exec(word);
  if (match && NUMBERS[match[1]]) {
    const get = NUMBERS[match[1]];
    const wanted = Number(match[2]);
    return (lane, row, i) => get(lane, row, i) === wanted;
  }
  const status = SpanStatusNames.indexOf(word);
  if (status >= 0) return (_, row, i) => row.status[i] === status;
  const kinds = SpanKindNames.map((name, k) => (name.startsWith(word) ? k : -1)).filter((k) => k >= 0);
  if (kinds.length) return (_, row, i) => kinds.includes(row.kind[i]);
  return null;
}

/** All words must match; null where a word means nothing. */
export function parseSearch(text: string): Predicate | null {
  const joined = text.trim().toLowerCase().replace(/\b(rank|node|nic|channel|op|op_id|peer|step)\s+(\d+)/g, "$1:$2");
  const words = joined.split(/\s+/).filter(Boolean).map(term);
  if (!words.length || words.some((word) => word === null)) return null;
  return (lane, row, i) => words.every((word) => word!(lane, row, i));
}

export interface Hit {
  lane: Lane;
  row: Row;
  i: number;
  t: number;
}

/** The first hit after (dir 1) or last before (dir -1) time `t`, and how many there are. */
export function findHit(store: Store, predicate: Predicate, t: number, dir: 1 | -1): { hit: Hit | null; count: number } {
  let hit: Hit | null = null;
  let wrapped: Hit | null = null;
  let count = 0;
  for (const lane of store.lanes) {
    for (const row of lane.rows) {
      for (let i = 0; i < row.n; i++) {
        if (!predicate(lane, row, i)) continue;
        count += 1;
        const here = { lane, row, i, t: row.begin[i] };
        if ((here.t - t) * dir > 0 && (!hit || (here.t - hit.t) * dir < 0)) hit = here;
        if (!wrapped || (here.t - wrapped.t) * dir < 0) wrapped = here;
      }
    }
  }
  return { hit: hit ?? wrapped, count };
}
