// What views of one thing share without the kernel: cursor, visible range, highlighted lane.
//
// Is: a page-wide channel, keyed by a group name; modules are loaded once per widget, so it hangs on the window.
// Is not: persistent.

export interface Linked {
  cursor?: number | null;
  range?: [number, number];
  rank?: number | null;
}

interface Group {
  state: Linked;
  members: Set<(change: Linked) => void>;
}

const KEY = Symbol.for("ccl_lab.link");

function groups(): Map<string, Group> {
  const page = globalThis as any;
  if (!page[KEY]) page[KEY] = new Map<string, Group>();
  return page[KEY];
}

export class Link {
  private group: Group;

  constructor(name: string, private callback: (change: Linked) => void) {
    const all = groups();
    if (!all.has(name)) all.set(name, { state: {}, members: new Set() });
    this.group = all.get(name)!;
    this.group.members.add(callback);
  }

  get state(): Linked {
    return this.group.state;
  }

  /** Tells all other members. */
  tell(change: Linked): void {
    Object.assign(this.group.state, change);
    for (const member of this.group.members) if (member !== this.callback) member(change);
  }

  close(): void {
    this.group.members.delete(this.callback);
  }
}
