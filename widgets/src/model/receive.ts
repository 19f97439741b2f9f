// Spans on their way in: numbered batches, cumulative acknowledgement, and asking again where one is missing.
//
//   kernel  --- spans seq 0, 1, 2, _, 4 --->  browser
//   browser --- ask from 3              --->  kernel       (a gap; again every second while it lasts)
//   browser --- ack 2                   --->  kernel       (three times a second while there is news)
//
// Is: the browser's end of the stream. Is not: storage. Invariant: the store sees every sequence number once, in order,
// but for what the kernel says it no longer keeps (`first`), which is counted as skipped.
import { Batch, Store } from "./store";
import { Bytes, viewOf } from "./host";

export const ACK_MS = 333;
const RETRY_MS = 1000;

export class Receiver {
  next = 0;
  gaps = 0;
  skipped = 0;
  private known = -1;
  private acked = -1;
  private asked = -Infinity;
  private timer: ReturnType<typeof setInterval> | null = null;

  constructor(
    readonly store: Store,
    private send: (content: Record<string, unknown>) => void,
  ) {}

  start(): void {
    this.ask();
    this.timer = setInterval(() => this.tick(), ACK_MS);
  }

  stop(): void {
    if (this.timer !== null) clearInterval(this.timer);
    this.timer = null;
  }

  private ask(): void {
    this.asked = performance.now();
    this.send({ type: "ask", source: this.store.id, from: this.next });
  }

  private tick(): void {
    this.want();
    if (this.next - 1 <= this.acked) return;
    this.acked = this.next - 1;
    this.send({ type: "ack", source: this.store.id, seq: this.acked });
  }

  /** Asks again where a batch that exists has not come. */
  private want(): void {
    if (this.known < this.next || performance.now() - this.asked < RETRY_MS) return;
    this.gaps += 1;
    this.ask();
  }

  /** The kernel says that batches up to `seq` exist. */
  head(seq: number): void {
    this.known = Math.max(this.known, seq);
    this.want();
  }

  /** Takes a batch as it came off the line. */
  take(batch: Batch & { first?: number }, buffers: Bytes[]): void {
    if (batch.first !== undefined && batch.first > this.next) {
      this.skipped += batch.first - this.next;
      this.next = batch.first;
    }
    if (batch.seq < this.next) return;
    this.known = Math.max(this.known, batch.seq);
    if (batch.seq > this.next) return this.want();
    this.store.ingest(batch, viewOf(buffers[0]), viewOf(buffers[1]));
    this.next += 1;
    this.asked = -Infinity;
  }
}
