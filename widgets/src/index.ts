// The entry of the bundle: what anywidget calls (initialize once a model, render once a view), and mount() for files.
//
// Is: the table of views and the composition of several on one model. Is not: any one view.
// Invariant: initialize() never awaits; everything started here ends with the signal of who started it.
import { h } from "./draw/dom";
import { detachedHost, unpack } from "./model/document";
import { Host } from "./model/host";
import { Session, ViewSpec } from "./model/session";
import { bandwidthView } from "./views/bandwidth";
import { changesView } from "./views/changes";
import { controlsView } from "./views/controls";
import { FaultsView } from "./views/faults";
import { Heatmap } from "./views/heatmap";
import { overlapView } from "./views/overlap";
import { ScheduleView } from "./views/schedule";
import { Timeline } from "./views/timeline";
import { TopologyView } from "./views/topology";
import css from "./views/style.css";

type Make = (session: Session, spec: ViewSpec, root: HTMLElement, signal: AbortSignal) => HTMLElement;

const VIEWS: Record<string, Make> = {
  timeline: (session, spec, root, signal) => new Timeline(session, session.stores.get(spec.source ?? "a")!, spec, root, signal).frame.root,
  heatmap: (session, spec, root, signal) => new Heatmap(session, session.stores.get(spec.source ?? "a")!, spec, root, signal).frame.root,
  topology: (session, spec, root, signal) => new TopologyView(session, session.stores.get(spec.source ?? ""), spec, root, signal).frame.root,
  schedule: (session, spec, root, signal) => new ScheduleView(session, session.stores.get(spec.source ?? ""), spec, root, signal).frame.root,
  changes: (session, spec) => changesView(session, spec),
  controls: (session, spec, _root, signal) => controlsView(session, spec, signal),
  faults: (session, spec, _root, signal) => new FaultsView(session, session.stores.get(spec.source ?? "a")!, spec, signal).frame.root,
  overlap: overlapView,
  bandwidth: bandwidthView,
};

const sessions = new Map<string, { session: Session; users: number }>();

function open(host: Host): Session {
  const uid = host.get("uid") as string;
  const known = sessions.get(uid);
  if (known) {
    known.users += 1;
    return known.session;
  }
  const session = new Session(host);
  sessions.set(uid, { session, users: 1 });
  return session;
}

function close(host: Host): void {
  const uid = host.get("uid") as string;
  const known = sessions.get(uid);
  if (!known || --known.users > 0) return;
  known.session.close();
  sessions.delete(uid);
}

/** Ends with the given signal, or by the function returned where the host gives none. */
function scoped(signal: AbortSignal | undefined, start: (signal: AbortSignal) => void): (() => void) | undefined {
  const controller = new AbortController();
  start(controller.signal);
  if (!signal) return () => controller.abort();
  if (signal.aborted) controller.abort();
  signal.addEventListener("abort", () => controller.abort());
  return undefined;
}

function initialize({ model, signal }: { model: Host; signal?: AbortSignal }): (() => void) | undefined {
  return scoped(signal, (ended) => {
    open(model);
    ended.addEventListener("abort", () => close(model));
  });
}

function draw(session: Session, el: HTMLElement, signal: AbortSignal): void {
  const root = h("div", { class: "ccl" });
  el.append(h("style", {}, css), root);
  const views = session.spec.views;
  const many = views.some((view) => view.half);
  const grid = h("div", { class: many ? "ccl-grid" : "ccl-grid one" });
  root.append(grid);
  for (const spec of views) {
    const make = VIEWS[spec.view];
    if (!make) throw new Error(`no view named ${spec.view}`);
    const made = make(session, spec, root, signal);
    if (!spec.half) made.classList.add("wide");
    grid.append(made);
  }
  signal.addEventListener("abort", () => el.replaceChildren());
}

function render({ model, el, signal }: { model: Host; el: HTMLElement; signal?: AbortSignal }): (() => void) | undefined {
  return scoped(signal, (ended) => {
    const session = open(model);
    draw(session, el, ended);
    ended.addEventListener("abort", () => close(model));
  });
}

/** Draws the documents of an exported file into its places; an element's data-document says which. */
async function mount(text: string, places: Iterable<HTMLElement>): Promise<void> {
  const documents = await unpack(text);
  for (const el of places) render({ model: detachedHost(documents[Number(el.dataset.document)]), el });
}

export default { initialize, render, mount };
