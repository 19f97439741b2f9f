// Numbers as people read them, and round steps for axes. Is not: localised.

function digits(x: number, n = 3): string {
  const text = Number(x.toPrecision(n));
  return Math.abs(text) >= 1e6 ? String(Math.round(x)) : String(text);
}

export function time(ns: number): string {
  const a = Math.abs(ns);
  if (a >= 1e9) return `${digits(ns / 1e9, 4)} s`;
  if (a >= 1e6) return `${digits(ns / 1e6, 4)} ms`;
  if (a >= 1e3) return `${digits(ns / 1e3, 4)} µs`;
  return `${digits(ns, 4)} ns`;
}

export function bytes(n: number): string {
  if (n >= 2 ** 30) return `${digits(n / 2 ** 30, 4)} GiB`;
  if (n >= 2 ** 20) return `${digits(n / 2 ** 20, 4)} MiB`;
  if (n >= 2 ** 10) return `${digits(n / 2 ** 10, 4)} KiB`;
  return `${n} B`;
}

/** Rates of links are given in bits; Gb/s = 1e9 bits a second. */
export function rate(gbits: number): string {
  if (gbits >= 0.1 || gbits === 0) return `${digits(gbits)} Gb/s`;
  return gbits >= 1e-4 ? `${digits(gbits * 1e3)} Mb/s` : `${digits(gbits * 1e6)} kb/s`;
}

export function count(n: number): string {
  return n.toLocaleString("en-US");
}

/** The round number (1, 2, 5 times a power of ten) not below x. */
export function roundStep(x: number): number {
  const power = 10 ** Math.floor(Math.log10(x));
  for (const m of [1, 2, 5, 10]) if (m * power >= x * 0.9999) return m * power;
  return 10 * power;
}

/** Round times within [t0, t1], about `wanted` of them, labelled in one unit. */
export function ticks(t0: number, t1: number, wanted: number): { t: number; label: string }[] {
  const step = roundStep(Math.max(1e-3, (t1 - t0) / Math.max(1, wanted)));
  const far = Math.max(Math.abs(t0), Math.abs(t1));
  const [unit, name] = far >= 1e9 ? [1e9, "s"] : far >= 1e6 ? [1e6, "ms"] : far >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  const places = Math.min(9, Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9)));
  const out: { t: number; label: string }[] = [];
  for (let i = Math.ceil(t0 / step); i * step <= t1; i++) {
    out.push({ t: i * step, label: `${((i * step) / unit).toFixed(places)} ${name}` });
  }
  return out;
}

export function escape(text: string): string {
  return text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]!);
}
