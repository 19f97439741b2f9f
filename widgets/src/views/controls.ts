// The row of controls of a running world: what it is doing, how far it is, cancel.
//
// Is: status words, a progress bar, buttons whose clicks Python answers. Is not: a decision; Python decides.
import { h } from "../draw/dom";
import * as fmt from "../draw/format";
import { FAULT_ACTS, Session, ViewSpec } from "../model/session";
import { Frame } from "./frame";

function statusWords(status: Record<string, any>): string {
  const words = [status.state ?? "idle", status.algorithm, status.collective ?? status.op, status.nbytes ? fmt.bytes(Number(status.nbytes)) : ""];
  if (status.ranks) words.push(`${status.ranks} ranks`);
  if (status.elapsed_s) words.push(`${Number(status.elapsed_s).toFixed(1)} s`);
  return words.filter(Boolean).join(" · ");
}

export function controlsView(session: Session, spec: ViewSpec, signal: AbortSignal): HTMLElement {
  const frame = new Frame(spec.title ?? "World", "controls of the world");
  const bar = h("i", { style: "width:0%" });
  const progress = h("span", { class: "ccl-progress", role: "progressbar", "aria-label": "progress", "aria-valuemin": "0", "aria-valuemax": "100" }, bar);
  const note = h("span", { class: "ccl-note", role: "status" });
  frame.control(progress);
  frame.control(note);
  const name = session.spec.data.world ?? "world";
  const cancel = frame.button("■ cancel run", "Cancel the run that is going", () => {
    session.act("cancel", {});
    frame.code(`${name}.cancel()`);
  });
  cancel.classList.add("danger");
  const hasFaults = session.spec.views.some((view) => view.view === "faults");
  const show = () => {
    const { status } = session;
    frame.subtitle(statusWords(status));
    const share = typeof status.progress === "number" ? Math.max(0, Math.min(1, status.progress)) : null;
    progress.style.visibility = share === null ? "hidden" : "visible";
    bar.style.width = `${(share ?? 0) * 100}%`;
    progress.setAttribute("aria-valuenow", String(Math.round((share ?? 0) * 100)));
    // What faults say stands in their own view.
    const said = hasFaults && FAULT_ACTS.has(session.noteOf) ? "" : session.note;
    note.textContent = said;
    note.classList.toggle("busy", said.startsWith("kernel busy"));
    frame.badges(status.error ? [{ text: `⚠ ${status.error}`, bad: true }] : []);
    cancel.disabled = !session.connected || status.state !== "running";
  };
  const stop = session.listen(show);
  signal.addEventListener("abort", stop);
  frame.body.remove();
  frame.foot.remove();
  show();
  return frame.root;
}
