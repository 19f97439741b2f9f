// Small helpers to make elements. Is not: a framework.

type Attributes = Record<string, string | number | boolean | ((event: any) => void) | undefined>;

function apply(el: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") el.addEventListener(name.replace(/^on/, ""), value);
    else el.setAttribute(name, value === true ? "" : String(value));
  }
}

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const el = document.createElement(tag);
  apply(el, attributes);
  el.append(...children);
  return el;
}

export function s(tag: string, attributes: Attributes = {}, ...children: (Node | string)[]): SVGElement {
  const el = document.createElementNS("http://www.w3.org/2000/svg", tag);
  apply(el, attributes);
  el.append(...children);
  return el;
}

/** Sizes a canvas to its CSS box in device pixels; returns the ratio. */
export function fitCanvas(canvas: HTMLCanvasElement, width: number, height: number): number {
  const ratio = Math.min(2, globalThis.devicePixelRatio || 1);
  const [w, hh] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== hh) {
    canvas.width = w;
    canvas.height = hh;
  }
  // Writing a style costs a layout even where it does not change.
  if (canvas.style.width !== `${width}px`) canvas.style.width = `${width}px`;
  if (canvas.style.height !== `${height}px`) canvas.style.height = `${height}px`;
  return ratio;
}

export function download(name: string, url: string): void {
  const a = h("a", { href: url, download: name });
  a.click();
}
