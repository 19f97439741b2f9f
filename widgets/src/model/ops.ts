// The op table of a schedule in the browser: columns, words for an op, and the way of a chunk.
//
// Is: the meaning that pictures need (what an op reads and writes). Is not: verification.
// Invariant: chunks are followed in an order that the schedule's program order and signals allow (`causal`).
import { BufferNames, Kind, KindNames } from "./schema";
import { columnOf } from "./host";

const OP_COLUMNS = ["rank", "channel", "step", "kind", "peer", "sig_channel", "value", "dst_buf", "dst_chunk", "n_chunks", "src_begin", "src_count", "arg"] as const;
type Name = (typeof OP_COLUMNS)[number];

export class Ops {
  readonly n: number;
  readonly op_id: Int32Array;
  readonly c = {} as Record<Name, Int32Array>;
  readonly src_rank: Int32Array;
  readonly src_buf: Int32Array;
  readonly src_chunk: Int32Array;
  readonly steps: number;
  /** In order of (step, op_id), as the picture and the table show them. */
  readonly order: Int32Array;
  private run: Int32Array | null = null;

  constructor(spec: any) {
    for (const name of OP_COLUMNS) this.c[name] = columnOf(spec.columns[name], Int32Array);
    this.op_id = columnOf(spec.op_id, Int32Array);
    this.src_rank = columnOf(spec.sources.src_rank, Int32Array);
    this.src_buf = columnOf(spec.sources.src_buf, Int32Array);
    this.src_chunk = columnOf(spec.sources.src_chunk, Int32Array);
    this.n = this.op_id.length;
    this.steps = this.c.step.reduce((a, b) => Math.max(a, b), -1) + 1;
    this.order = Int32Array.from({ length: this.n }, (_, i) => i).sort((a, b) => this.c.step[a] - this.c.step[b] || a - b);
  }

  /** Ops in one order in which they may run: each (rank, channel) in program order, waits after their signals. */
  private causal(): Int32Array {
    if (this.run) return this.run;
    const streams = new Map<number, number[]>();
    for (let i = 0; i < this.n; i++) {
      const key = this.c.rank[i] * 4096 + this.c.channel[i];
      if (!streams.has(key)) streams.set(key, []);
      streams.get(key)!.push(i);
    }
    const heads = [...streams.values()].map((list) => ({ list, at: 0 }));
    const counters = new Map<string, number>();
    const out: number[] = [];
    for (let before = -1; before < out.length; ) {
      before = out.length;
      for (const head of heads) while (head.at < head.list.length && this.runs(head.list[head.at], counters)) out.push(head.list[head.at++]);
    }
    // A table that was cut off can wait for signals that are not in it.
    const done = new Set(out);
    for (const i of this.order) if (!done.has(i)) out.push(i);
    this.run = Int32Array.from(out);
    return this.run;
  }

  /** True where op i may run now; raises the counter it signals. */
  private runs(i: number, counters: Map<string, number>): boolean {
    const c = this.c;
    if (c.kind[i] === Kind.wait) return (counters.get(`${c.rank[i]},${c.peer[i]},${c.sig_channel[i]}`) ?? 0) >= c.value[i];
    if ((c.kind[i] === Kind.put || c.kind[i] === Kind.signal) && c.sig_channel[i] >= 0) {
      const key = `${c.peer[i]},${c.rank[i]},${c.sig_channel[i]}`;
      counters.set(key, (counters.get(key) ?? 0) + 1);
    }
    return true;
  }

  private range(buf: number, chunk: number, n: number): string {
    return `${BufferNames[buf]}[${n > 1 ? `${chunk}:${chunk + n}` : chunk}]`;
  }

  /** The rank whose memory an op writes. */
  target(i: number): number {
    return this.c.kind[i] === Kind.put ? this.c.peer[i] : this.c.rank[i];
  }

  writes(i: number): boolean {
    const kind = this.c.kind[i];
    return kind === Kind.put || kind === Kind.get || kind === Kind.copy || kind === Kind.reduce;
  }

  /** One line about an op, as a schedule's text form reads. */
  words(i: number): string {
    const c = this.c;
    const kind = c.kind[i];
    const sources: string[] = [];
    for (let k = c.src_begin[i]; k < c.src_begin[i] + c.src_count[i]; k++) {
      const where = this.src_rank[k] === c.rank[i] ? "" : ` of rank ${this.src_rank[k]}`;
      sources.push(this.range(this.src_buf[k], this.src_chunk[k], c.n_chunks[i]) + where);
    }
    const dst = this.writes(i) ? this.range(c.dst_buf[i], c.dst_chunk[i], c.n_chunks[i]) : "";
    if (kind === Kind.put) return `put ${sources[0] ?? ""} → rank ${c.peer[i]} ${dst}${c.sig_channel[i] >= 0 ? " + signal" : ""}`;
    if (kind === Kind.get) return `get ${sources[0] ?? ""} → ${dst}`;
    if (kind === Kind.copy) return `copy ${sources[0] ?? ""} → ${dst}`;
    if (kind === Kind.reduce) return `reduce ${sources.join(" + ")} → ${dst}`;
    if (kind === Kind.wait) return `wait for signal ${c.value[i]} of rank ${c.peer[i]}`;
    if (kind === Kind.signal) return `signal rank ${c.peer[i]}`;
    if (kind === Kind.flush) return c.peer[i] < 0 ? "flush all" : `flush to rank ${c.peer[i]}`;
    return kind === Kind.compute ? `compute partition ${c.arg[i]}` : KindNames[kind];
  }

  /** Ops that carry what op `start` writes (before it and after it), itself included. */
  path(start: number): Set<number> {
    const out = new Set<number>([start]);
    if (!this.writes(start)) return out;
    const at = this.causal().indexOf(start);
    this.forward(start, at, out);
    this.backward(start, at, out);
    return out;
  }

  private key(rank: number, buf: number, chunk: number): number {
    return (rank * 4 + buf) * 2 ** 24 + chunk;
  }

  /** Which chunks (0 to n_chunks - 1) of op i read a marked place. */
  private reads(i: number, marked: Set<number>): number[] {
    const c = this.c;
    const out: number[] = [];
    for (let m = 0; m < c.n_chunks[i]; m++) {
      for (let k = c.src_begin[i]; k < c.src_begin[i] + c.src_count[i]; k++) {
        if (marked.has(this.key(this.src_rank[k], this.src_buf[k], this.src_chunk[k] + m))) {
          out.push(m);
          break;
        }
      }
    }
    return out;
  }

  private forward(start: number, at: number, out: Set<number>): void {
    const marked = new Set<number>();
    for (let m = 0; m < this.c.n_chunks[start]; m++) marked.add(this.key(this.target(start), this.c.dst_buf[start], this.c.dst_chunk[start] + m));
    for (let p = at + 1; p < this.n; p++) {
      const i = this.causal()[p];
      if (!this.writes(i)) continue;
      const read = new Set(this.reads(i, marked));
      if (read.size) out.add(i);
      for (let m = 0; m < this.c.n_chunks[i]; m++) {
        const place = this.key(this.target(i), this.c.dst_buf[i], this.c.dst_chunk[i] + m);
        if (read.has(m)) marked.add(place);
        else marked.delete(place);
      }
    }
  }

  private backward(start: number, at: number, out: Set<number>): void {
    const marked = new Set<number>();
    const need = (i: number, m: number) => {
      for (let k = this.c.src_begin[i]; k < this.c.src_begin[i] + this.c.src_count[i]; k++) marked.add(this.key(this.src_rank[k], this.src_buf[k], this.src_chunk[k] + m));
    };
    for (let m = 0; m < this.c.n_chunks[start]; m++) need(start, m);
    for (let p = at - 1; p >= 0; p--) {
      const i = this.causal()[p];
      if (!this.writes(i)) continue;
      for (let m = 0; m < this.c.n_chunks[i]; m++) {
        const place = this.key(this.target(i), this.c.dst_buf[i], this.c.dst_chunk[i] + m);
        if (!marked.has(place)) continue;
        marked.delete(place);
        out.add(i);
        need(i, m);
      }
    }
  }
}
