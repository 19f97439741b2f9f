// Keys, wheel and mouse of a timeline, as Perfetto has them.
//
// Is: events -> calls. Is not: state. Invariants: a key that means something here never reaches the notebook (which
// would insert a cell); the wheel scrolls the page until the timeline has focus or Ctrl is held.
import { calm } from "../draw/theme";
import { flagFacts } from "./marks_paint";
import type { Timeline } from "./timeline";
import { GUTTER } from "./timeline_layout";

const KEYS: Record<string, (t: Timeline) => void> = {
  w: (t) => t.zoom(1 / 1.35),
  s: (t) => t.zoom(1.35),
  a: (t) => t.pan(-0.15),
  d: (t) => t.pan(0.15),
  f: (t) => t.fit(),
  r: (t) => t.fold(),
  m: (t) => t.mark(),
  e: (t) => t.nextMark(),
  "/": (t) => t.focusSearch(),
  "?": (t) => t.frame.toggleHelp(),
  n: (t) => t.find(1),
  escape: (t) => t.clearSelection(),
  arrowleft: (t) => t.pan(-0.08),
  arrowright: (t) => t.pan(0.08),
};
const LEFT_TO_BROWSER = new Set(["tab", "arrowup", "arrowdown", "pageup", "pagedown", "home", "end", "shift", "control", "alt", "meta", " "]);

function onKey(t: Timeline, event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key.toLowerCase();
  if (key !== "tab") event.stopPropagation();
  const act = KEYS[key];
  if (act) {
    event.preventDefault();
    act(t);
  } else if (event.target === t.scroll && !LEFT_TO_BROWSER.has(key)) {
    event.preventDefault();
  }
}

function onWheel(t: Timeline, event: WheelEvent, x: number): void {
  const focused = t.scroll.contains(document.activeElement);
  const zooming = event.ctrlKey || event.metaKey || (focused && !event.shiftKey && Math.abs(event.deltaY) > Math.abs(event.deltaX));
  const panning = event.shiftKey || (focused && Math.abs(event.deltaX) > Math.abs(event.deltaY));
  if (x < 0 || (!zooming && !panning)) return;
  event.preventDefault();
  event.stopPropagation();
  const delta = event.deltaMode === 1 ? 16 : 1;
  if (zooming) t.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * delta * 0.0022))), t.timeAt(x));
  else t.pan(((event.deltaX || event.deltaY) * delta) / t.width);
}

interface Press {
  x: number;
  t: number;
  range: [number, number];
  mode: "select" | "pan";
  moved: boolean;
}

function attachPointer(t: Timeline, place: (event: MouseEvent) => [number, number]): void {
  let press: Press | null = null;
  const on = (name: string, callback: (event: any) => void) => t.scroll.addEventListener(name, callback, { signal: t.signal });
  on("pointerdown", (event: PointerEvent) => {
    const [x, y] = place(event);
    if (x < 0 || y < 0 || event.button === 2) return;
    const pan = event.shiftKey || event.button === 1;
    press = { x, t: t.timeAt(x), range: [t.t0, t.t1], mode: pan ? "pan" : "select", moved: false };
    t.scroll.setPointerCapture(event.pointerId);
    if (event.button === 1) event.preventDefault();
  });
  on("pointermove", (event: PointerEvent) => {
    const [x, y] = place(event);
    if (!press) {
      const rank = x < 0 ? null : t.rankAt(y);
      t.setHover(x < 0 || rank !== null ? null : t.hit(x, y), event.clientX, event.clientY, x < 0 ? null : t.timeAt(x), rank);
      return;
    }
    if (Math.abs(x - press.x) > 3) press.moved = true;
    if (!press.moved) return;
    t.frame.tip(null);
    if (press.mode === "pan") {
      const d = ((press.x - x) / t.width) * (press.range[1] - press.range[0]);
      t.setRange(press.range[0] + d, press.range[1] + d);
    } else {
      t.drag = [press.t, t.timeAt(Math.max(0, Math.min(t.width, x)))];
      t.redraw(2);
    }
  });
  on("pointerup", (event: PointerEvent) => {
    const was = press;
    press = null;
    if (!was) return;
    if (was.moved && was.mode === "select") return t.commitSelection();
    if (was.moved) return;
    const hit = t.hit(...place(event));
    t.drag = null;
    if (hit) t.selectSpan(hit);
    else t.clearSelection();
  });
  on("pointercancel", () => (press = null));
  on("pointerleave", (event: PointerEvent) => t.setHover(null, event.clientX, event.clientY, null));
  on("dblclick", () => {
    if (t.hover) {
      const { row, i } = t.hover;
      const length = Math.max(20, row.end[i] - row.begin[i]);
      glide(t, row.begin[i] - length * 0.5, row.end[i] + length * 0.5);
    }
  });
}

/** Moves to a range in a quarter second, or at once for those who want no motion. */
export function glide(t: Timeline, t0: number, t1: number): void {
  if (calm()) return t.setRange(t0, t1);
  const [a0, a1, began] = [t.t0, t.t1, performance.now()];
  const step = () => {
    const f = Math.min(1, (performance.now() - began) / 220);
    const e = 1 - (1 - f) ** 3;
    t.setRange(a0 + (t0 - a0) * e, a1 + (t1 - a1) * e);
    if (f < 1 && !t.signal.aborted) requestAnimationFrame(step);
  };
  step();
}

/** The strip and ruler on top: press or drag to go there; a flag tells what it stands for. */
function attachTop(t: Timeline): void {
  const at = (event: PointerEvent) => {
    const box = t.top.getBoundingClientRect();
    return { x: event.clientX - box.left, width: box.width, flag: t.flagAt(event.clientX - box.left, event.clientY - box.top) };
  };
  const go = (event: PointerEvent) => {
    const { x, width, flag } = at(event);
    if (!(event.buttons & 1)) {
      t.frame.tip(flag ? flagFacts(flag) : null, event.clientX, event.clientY);
      return;
    }
    const middle = flag ? flag.marks[flag.named].t : (x / width) * t.span();
    const half = (t.t1 - t.t0) / 2;
    t.setRange(middle - half, middle + half);
  };
  const press = (event: PointerEvent) => {
    if (!at(event).flag) t.top.setPointerCapture(event.pointerId);
    go(event);
  };
  t.top.addEventListener("pointerdown", press, { signal: t.signal });
  t.top.addEventListener("pointermove", go, { signal: t.signal });
  t.top.addEventListener("pointerleave", () => t.frame.tip(null), { signal: t.signal });
}

export function attachInput(t: Timeline): void {
  const place = (event: MouseEvent): [number, number] => {
    const box = t.scroll.getBoundingClientRect();
    const x = event.clientX - box.left - GUTTER;
    return [x > t.width ? -1 : x, event.clientY - box.top];
  };
  t.frame.root.addEventListener("keydown", (event) => onKey(t, event), { signal: t.signal });
  t.scroll.addEventListener("wheel", (event) => onWheel(t, event, place(event)[0]), { signal: t.signal, passive: false });
  t.scroll.addEventListener("scroll", () => t.redraw(5), { signal: t.signal });
  attachPointer(t, place);
  attachTop(t);
}
