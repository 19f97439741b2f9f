// Colours: Okabe-Ito for categories, viridis for scales; the same on dark and light ground.
//
// Is: numbers and lookups. Is not: aware of the page. Colour never stands alone: every use has a word beside it.
import { SpanKind, Track } from "../model/schema";

export interface Category {
  name: string;
  color: string;
}

export const CATEGORIES: readonly Category[] = [
  { name: "put", color: "#0072B2" },
  { name: "get", color: "#56B4E9" },
  { name: "signal", color: "#F0E442" },
  { name: "wait", color: "#9AA0A6" },
  { name: "copy", color: "#009E73" },
  { name: "reduce", color: "#D55E00" },
  { name: "compute", color: "#E69F00" },
  { name: "recovery", color: "#CC79A7" },
  { name: "fault", color: "#C1121F" },
  { name: "sent (tx)", color: "#0072B2" },
  { name: "received (rx)", color: "#56B4E9" },
  { name: "collective", color: "#C4C9CF" },
  { name: "marked", color: "#F0E442" },
  { name: "fabric", color: "#009E73" },
];
export const WAIT = 3;
export const FAULT = 8;
export const COMPUTE = 6;
export const COPY = 4;
/** Communication in one colour, where only exposed or not matters; exposed is hatched besides. */
export const EXPOSED = 0;

const BY_KIND: Record<number, number> = {
  [SpanKind.put]: 0,
  [SpanKind.get]: 1,
  [SpanKind.signal]: 2,
  [SpanKind.wait]: WAIT,
  [SpanKind.flush]: WAIT,
  [SpanKind.copy]: 4,
  [SpanKind.reduce]: 5,
  [SpanKind.compute]: 6,
  [SpanKind.segment]: 9,
  [SpanKind.collective]: 11,
  [SpanKind.ready]: WAIT,
  [SpanKind.fault]: FAULT,
  [SpanKind.recovery]: 7,
  [SpanKind.user]: 12,
};

/** Index in CATEGORIES of a span: what it did, but for wires what direction it went. */
export function categoryOf(track: number, kind: number): number {
  if (kind !== SpanKind.fault && kind !== SpanKind.recovery) {
    if (track === Track.nic_tx) return 9;
    if (track === Track.nic_rx) return 10;
    if (track === Track.fabric) return 13;
  }
  return BY_KIND[kind] ?? 12;
}

const VIRIDIS = [
  [68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142],
  [31, 158, 137], [53, 183, 121], [109, 205, 89], [180, 222, 44], [253, 231, 37],
];

/** [r, g, b] of viridis at v in [0, 1]. */
export function viridis(v: number): [number, number, number] {
  const x = Math.min(1, Math.max(0, v)) * (VIRIDIS.length - 1);
  const i = Math.min(VIRIDIS.length - 2, Math.floor(x));
  const f = x - i;
  const [a, b] = [VIRIDIS[i], VIRIDIS[i + 1]];
  return [a[0] + (b[0] - a[0]) * f, a[1] + (b[1] - a[1]) * f, a[2] + (b[2] - a[2]) * f];
}

export function viridisCss(v: number): string {
  return `rgb(${viridis(v).map(Math.round).join(",")})`;
}

export function parseHex(color: string): [number, number, number] {
  const n = parseInt(color.slice(1), 16);
  return [(n >> 16) & 255, (n >> 8) & 255, n & 255];
}

/** A colour as ImageData wants it in a Uint32Array (little-endian machines, as every browser's). */
export function packed(r: number, g: number, b: number): number {
  return ((255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;
}

/** Black or white, whichever reads on this colour. */
export function inkOn(color: string | [number, number, number]): string {
  const [r, g, b] = typeof color === "string" ? parseHex(color) : color;
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#1a1a1a" : "#ffffff";
}
