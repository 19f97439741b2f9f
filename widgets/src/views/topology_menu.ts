// The menu of a NIC or rank: its entries come from Python, with the Python of each; one click acts.
//
// Is: spec -> menu, and what is sent. Is not: the menu itself (menu.ts) or a decision.
import { Active } from "../model/faults";
import { Session } from "../model/session";
import { Frame } from "./frame";
import { Entry, openMenu } from "./menu";

export interface FaultMenu {
  session: Session;
  frame: Frame;
  parent: HTMLElement;
  signal: AbortSignal;
  anchor: Element;
  /** {node, nic} or {rank}. */
  where: Record<string, number>;
  title: string;
  /** What there is to undo. */
  undoable: Active[];
}

export function faultMenu(options: FaultMenu): void {
  const { session, where } = options;
  const menu = session.spec.data.fault_menu;
  const onRank = "rank" in where;
  const send = (name: string, args: Record<string, unknown>, python: string) => {
    session.act(name, args);
    options.frame.code(python);
  };
  const entries: Entry[] = (onRank ? menu.rank : menu.nic).map((each: any): Entry => {
    const python = each.python.replace(/\{(\w+)\}/g, (_: string, name: string) => String(where[name]));
    return { icon: each.icon, word: each.word, title: each.title, python, final: each.final, act: () => send("fault", { what: each.what, ...where }, python) };
  });
  const world = session.spec.data.world ?? "world";
  const python = options.undoable.map((each) => `${world}.faults.undo(${each.number})`).reverse().join("; ");
  const back: Entry = {
    icon: onRank ? "▶" : "↺", word: onRank ? "resume" : "bring back", title: onRank ? "the process goes on (SIGCONT)" : "undo every fault of this NIC",
    python, disabled: !options.undoable.length, apart: !onRank, act: () => send("bring_back", where, python),
  };
  if (onRank) entries.splice(1, 0, back);
  else entries.push(back);
  const before = options.frame.shownCode;
  const preview = (text: string) => options.frame.code(text);
  openMenu({ title: options.title, entries, parent: options.parent, anchor: options.anchor, signal: options.signal, preview, cancelled: () => preview(before) });
}
