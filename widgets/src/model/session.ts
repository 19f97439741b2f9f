// One widget model in one page: its stores and receivers, its actions, and what it says back to Python.
//
// Is: shared by every view of that model (two views of one model work). Is not: drawing.
// Invariant: nothing here awaits; an action that Python did not answer within 500 ms is reported as queued.
import { Host } from "./host";
import { Receiver } from "./receive";
import { Store } from "./store";

export const BUSY_MS = 500;
/** Actions whose outcome the view of faults tells, where there is one. */
export const FAULT_ACTS: ReadonlySet<string> = new Set(["fault", "undo", "bring_back", "heal"]);
const SELECTS: ReadonlySet<string> = new Set(["nic", "rank"]);

export interface ViewSpec {
  view: string;
  source?: string;
  title?: string;
  [option: string]: any;
}

export interface Spec {
  link: string;
  views: ViewSpec[];
  sources: Record<string, any>;
  data: Record<string, any>;
  name?: string;
}

export class Session {
  spec: Spec;
  stores = new Map<string, Store>();
  receivers = new Map<string, Receiver>();
  status: Record<string, any> = {};
  note = "";
  /** The action that `note` is about, and whether it failed. */
  noteOf = "";
  failed = false;
  private listeners = new Set<() => void>();
  private pending = new Map<number, { name: string; timer: ReturnType<typeof setTimeout> }>();
  private nextAction = 1;
  private client = Math.random().toString(36).slice(2);

  constructor(readonly host: Host) {
    this.spec = host.get("spec");
    for (const [id, source] of Object.entries(this.spec.sources)) this.open(id, source);
    host.on("msg:custom", this.onMessage);
  }

  private open(id: string, source: any): void {
    const store = new Store(id, source.meta ?? {}, !!source.live, source.capacity ?? undefined);
    this.stores.set(id, store);
    const receiver = new Receiver(store, (content) => this.host.send({ ...content, client: this.client }));
    this.receivers.set(id, receiver);
    for (const batch of source.batches ?? []) receiver.take(batch, [batch.wire, batch.detail]);
    if (!source.complete) receiver.start();
  }

  private onMessage = (content: any, buffers: any[]): void => {
    const receiver = this.receivers.get(content.source);
    if (content.type === "spans") receiver?.take(content, buffers);
    else if (content.type === "head") receiver?.head(content.seq);
    else if (content.type === "status") this.setStatus(content.status);
    else if (content.type === "done") this.finish(content);
    else if (content.type === "faults") this.setFaults(content);
  };

  private setStatus(status: Record<string, any>): void {
    this.status = status;
    if (typeof status.device === "string") for (const store of this.stores.values()) if (store.live) store.setDevice(status.device);
    // A message may vanish on the way: the status says what there is, and what is missing is asked for again.
    const missed = [...this.stores.values()].some((store) => store.live && store.faults.version < (status.faults_version ?? -1));
    if (missed) this.host.send({ type: "ask_faults", client: this.client });
    this.tell();
  }

  private setFaults(content: any): void {
    const store = this.stores.get(content.source);
    store?.faults.take(content.faults);
    store?.changed();
    this.tell();
  }

  private finish(content: any): void {
    const was = this.pending.get(content.id);
    clearTimeout(was?.timer);
    this.pending.delete(content.id);
    // A click that only selects says nothing, and must not wipe away what another one said.
    if (!was || (!content.text && was.name !== this.noteOf)) return;
    this.say(was.name, content.text ?? "", content.ok === false);
  }

  private say(name: string, note: string, failed: boolean): void {
    [this.noteOf, this.note, this.failed] = [name, note, failed];
    this.tell();
  }

  listen(callback: () => void): () => void {
    this.listeners.add(callback);
    return () => this.listeners.delete(callback);
  }

  private tell(): void {
    for (const callback of [...this.listeners]) callback();
  }

  /** True where Python is there to act (not in an exported file). */
  get connected(): boolean {
    return !this.host.get("detached");
  }

  /** Asks Python to act; says so when the kernel is too busy to answer at once. */
  act(name: string, args: Record<string, unknown>): void {
    if (!this.connected) return;
    const id = this.nextAction++;
    if (!SELECTS.has(name)) this.note = "";
    this.host.send({ type: "action", id, name, args, client: this.client });
    const timer = setTimeout(() => this.say(name, "kernel busy, queued", false), BUSY_MS);
    this.pending.set(id, { name, timer });
  }

  /** Leaves a selection as an ordinary value of the model. */
  select(selected: Record<string, unknown>): void {
    this.host.set("selected", selected);
    this.host.save_changes();
  }

  close(): void {
    this.host.off("msg:custom", this.onMessage);
    for (const receiver of this.receivers.values()) receiver.stop();
    for (const { timer } of this.pending.values()) clearTimeout(timer);
  }
}
