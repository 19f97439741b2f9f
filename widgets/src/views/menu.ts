// A small menu at a thing that was clicked: mouse and keyboard, one entry acts, Escape leaves.
//
// Is: role="menu" with arrow keys, Home, End, Enter, Escape, Tab. Is not: nested. Invariants: the focus goes back to where
// it came from; no key reaches the notebook; a final entry (no undo) wants to be chosen twice.
import { h } from "../draw/dom";

export interface Entry {
  icon: string;
  word: string;
  title: string;
  /** Shown when the entry is focused or under the pointer. */
  python: string;
  disabled?: boolean;
  final?: boolean;
  /** A line above. */
  apart?: boolean;
  act: () => void;
}

export interface MenuOptions {
  title: string;
  entries: Entry[];
  /** Positions itself in here. */
  parent: HTMLElement;
  /** What was clicked; gets the focus back. */
  anchor: Element;
  preview: (python: string) => void;
  /** Nothing was chosen. */
  cancelled: () => void;
  signal: AbortSignal;
}

let close: (() => void) | null = null;

/** Opens a menu (and closes the one that was open); returns how to close it. */
export function openMenu(options: MenuOptions): () => void {
  close?.();
  const { parent, anchor } = options;
  const ended = new AbortController();
  const items: HTMLButtonElement[] = [];
  const menu = h("div", { class: "ccl-menu", role: "menu", "aria-label": options.title }, h("div", { class: "ccl-menu-title" }, options.title));
  let acted = false;
  const leave = (refocus: boolean) => {
    if (ended.signal.aborted) return;
    ended.abort();
    menu.remove();
    close = null;
    if (!acted) options.cancelled();
    if (refocus) (anchor as HTMLElement).focus({ preventScroll: true });
  };
  for (const entry of options.entries) {
    const item = itemOf(entry, options, () => {
      acted = true;
      leave(true);
    });
    items.push(item);
    if (entry.apart) menu.append(h("div", { class: "ccl-menu-line", role: "separator" }));
    menu.append(item);
  }
  menu.addEventListener("keydown", (event) => onKey(event, items, leave));
  const outside = (event: Event) => {
    if (!menu.contains(event.target as Node)) leave(false);
  };
  document.addEventListener("pointerdown", outside, { capture: true, signal: ended.signal });
  options.signal.addEventListener("abort", () => leave(false), { signal: ended.signal });
  parent.append(menu);
  place(menu, parent, anchor);
  close = () => leave(false);
  (items.find((item) => item.getAttribute("aria-disabled") !== "true") ?? items[0])?.focus({ preventScroll: true });
  return () => leave(false);
}

function itemOf(entry: Entry, options: MenuOptions, leave: () => void): HTMLButtonElement {
  const word = h("span", {}, entry.word);
  const item = h("button", { type: "button", role: "menuitem", tabindex: "-1", title: entry.title, "aria-disabled": String(!!entry.disabled) }, h("i", { "aria-hidden": "true" }, entry.icon), word);
  const preview = () => entry.python && options.preview(entry.python);
  let sure = !entry.final;
  item.addEventListener("focus", preview);
  item.addEventListener("pointerenter", () => item.focus({ preventScroll: true }));
  item.addEventListener("click", (event) => {
    event.stopPropagation();
    if (entry.disabled) return;
    if (!sure) {
      sure = true;
      item.classList.add("sure");
      word.textContent = `${entry.word}: sure? No undo`;
      return;
    }
    leave();
    entry.act();
  });
  return item;
}

function onKey(event: KeyboardEvent, items: HTMLButtonElement[], leave: (refocus: boolean) => void): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  event.stopPropagation();
  const at = items.indexOf(document.activeElement as HTMLButtonElement);
  const go: Record<string, number> = { ArrowDown: (at + 1) % items.length, ArrowUp: (at - 1 + items.length) % items.length, Home: 0, End: items.length - 1 };
  if (event.key in go) items[go[event.key]].focus({ preventScroll: true });
  else if (event.key === "Escape" || event.key === "Tab") leave(true);
  else if (event.key === "Enter" || event.key === " ") return;
  else {
    const starts = items.find((item) => item.textContent?.replace(/^\W+/, "").toLowerCase().startsWith(event.key.toLowerCase()));
    starts?.focus({ preventScroll: true });
  }
  event.preventDefault();
}

/** Below the anchor, or above it where the window ends; inside the parent's width. */
function place(menu: HTMLElement, parent: HTMLElement, anchor: Element): void {
  const at = anchor.getBoundingClientRect();
  const host = parent.getBoundingClientRect();
  const left = Math.min(Math.max(4, at.left - host.left), Math.max(4, host.width - menu.offsetWidth - 4));
  const below = at.bottom + menu.offsetHeight + 6 < innerHeight || at.top - menu.offsetHeight - 6 < 0;
  const top = below ? at.bottom - host.top + 4 : at.top - host.top - menu.offsetHeight - 4;
  menu.style.left = `${left}px`;
  menu.style.top = `${top}px`;
}
