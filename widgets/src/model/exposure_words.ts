// An exposure in words: one sentence that stands alone, for those who see the picture and those who do not.
//
// Is: numbers -> text, in the words of ccl_lab/trace/exposed.py. Is not: the numbers.
import * as fmt from "../draw/format";
import type { Parts } from "./exposure";

export function share(part: number, whole: number): string {
  return whole ? `${((100 * part) / whole).toFixed(1)} %` : "0 %";
}

/** The rank that exposes most; null without ranks. */
export function worstRank(parts: Parts[]): Parts | null {
  return parts.reduce<Parts | null>((worst, each) => (!worst || each.exposed_comm_ns > worst.exposed_comm_ns ? each : worst), null);
}

export function overlapOf(parts: Parts[]): number | null {
  const comm = parts.reduce((sum, each) => sum + each.comm_ns, 0);
  return comm ? (100 * parts.reduce((sum, each) => sum + each.overlapped_ns, 0)) / comm : null;
}

export function sentence(parts: Parts[]): string {
  const row = worstRank(parts);
  if (!row) return "No rank computes or communicates here.";
  const total = fmt.time(row.total_ns);
  if (parts.every((each) => !each.comm_ns)) return `Nothing communicates; rank ${row.rank} computes ${share(row.compute_ns, row.total_ns)} of ${total}.`;
  if (!row.exposed_comm_ns) return `On every rank all communication runs under computation: of ${total} nothing is exposed, ${share(row.idle_ns, row.total_ns)} idle.`;
  return (
    `Rank ${row.rank} spends ${fmt.time(row.exposed_comm_ns)} of ${total} (${share(row.exposed_comm_ns, row.total_ns)}) on communication that no computation hides; ` +
    `${share(row.overlapped_ns, row.comm_ns)} of its communication runs under computation.`
  );
}

/** Effective communication time: the whole time minus that of the computation alone (Flux, arXiv 2406.06858). */
export function effectiveCommTime(parts: Parts[]): number {
  return Math.max(0, ...parts.map((each) => each.total_ns)) - Math.max(0, ...parts.map((each) => each.compute_ns));
}

/** The partition as a table: a row per rank. */
export function partitionRows(parts: Parts[]): { head: string[]; rows: (string | number)[][] } {
  const head = ["rank", "total", "compute", "exposed comm", "exposed copies", "idle", "comm", "overlap"];
  const rows = parts.map((p) => [
    `rank ${p.rank}`, fmt.time(p.total_ns), fmt.time(p.compute_ns), fmt.time(p.exposed_comm_ns), fmt.time(p.exposed_memcpy_ns), fmt.time(p.idle_ns), fmt.time(p.comm_ns),
    p.comm_ns ? share(p.overlapped_ns, p.comm_ns) : "–",
  ]);
  return { head, rows };
}
