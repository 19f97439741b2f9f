// Rates of NICs, from the spans of their lanes.
//
// Is: (node, NIC, direction) -> Gb/s over any interval, exact for the spans there are. Is not: drawing.
import { Row } from "./row";
import { Track } from "./schema";
import { Store } from "./store";

export interface Nic {
  node: number;
  nic: number;
  tx: Row[];
  rx: Row[];
}

export function nicsOf(store: Store | undefined, nodes: number, perNode: number): Nic[] {
  const out: Nic[] = [];
  for (let node = 0; node < nodes; node++) for (let nic = 0; nic < perNode; nic++) out.push({ node, nic, tx: [], rx: [] });
  for (const lane of store?.lanes ?? []) {
    if (lane.track !== Track.nic_tx && lane.track !== Track.nic_rx) continue;
    if (lane.node < 0 || lane.node >= nodes || lane.index >= perNode) continue;
    const nic = out[lane.node * perNode + lane.index];
    (lane.track === Track.nic_tx ? nic.tx : nic.rx).push(...lane.rows);
  }
  return out;
}

/** Gb/s (1e9 bits a second) of some rows in [t0, t1); bytes per ns times 8 is Gb/s. */
export function gbits(rows: Row[], t0: number, t1: number): number {
  let bytes = 0;
  for (const row of rows) bytes += row.bytesBefore(t1) - row.bytesBefore(t0);
  return Math.max(0, (bytes * 8) / Math.max(1, t1 - t0));
}

const SHADES = 64;

/** Cells [from, to) of one shade, 0 to 1 of `top`; cells in which nothing moved are in none, however dark their neighbours are. */
export function shades(values: ArrayLike<number>, top: number): { from: number; to: number; shade: number }[] {
  const out = [];
  const shadeOf = (k: number) => (values[k] > 0 ? Math.min(SHADES, Math.round((values[k] / top) * SHADES)) : -1);
  for (let from = 0, to = 0; from < values.length; from = to) {
    const shade = shadeOf(from);
    for (to = from + 1; to < values.length && shadeOf(to) === shade; ) to++;
    if (shade >= 0) out.push({ from, to, shade: shade / SHADES });
  }
  return out;
}
