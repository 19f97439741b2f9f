// The page's colours, read again when they change: JupyterLab, VS Code, or what the browser prefers.
//
// Is: resolved colours for canvases, and the class that switches the fallbacks of the style sheet. Is not: a palette.

export interface Theme {
  dark: boolean;
  ground: string;
  raised: string;
  ink: string;
  faint: string;
  line: string;
  accent: string;
}

const FALLBACK: Record<string, string> = {
  "--ccl-ground": "#ffffff", "--ccl-raised": "#f1f3f5", "--ccl-ink": "#1b1f24", "--ccl-faint": "#5b6570", "--ccl-line": "#d5dae0", "--ccl-accent": "#0b6fc2",
};

function pageIsDark(): boolean {
  const body = document.body;
  const jupyter = body.getAttribute("data-jp-theme-light");
  if (jupyter !== null) return jupyter === "false";
  if (body.classList.contains("vscode-dark") || body.classList.contains("vscode-high-contrast")) return true;
  if (body.classList.contains("vscode-light")) return false;
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Colours as they stand at `el`, which carries class "ccl". */
export function readTheme(el: HTMLElement): Theme {
  const dark = pageIsDark();
  el.classList.toggle("ccl-dark", dark);
  const style = getComputedStyle(el);
  const value = (name: string) => style.getPropertyValue(name).trim() || FALLBACK[name];
  return {
    dark,
    ground: value("--ccl-ground"),
    raised: value("--ccl-raised"),
    ink: value("--ccl-ink"),
    faint: value("--ccl-faint"),
    line: value("--ccl-line"),
    accent: value("--ccl-accent"),
  };
}

/** Calls back when `el` comes into the page (before that it has no colours) and when the theme changes, until `signal` aborts. */
export function watchTheme(el: HTMLElement, callback: () => void, signal: AbortSignal): void {
  const arrival = new ResizeObserver(() => {
    if (!el.isConnected) return;
    arrival.disconnect();
    callback();
  });
  arrival.observe(el);
  signal.addEventListener("abort", () => arrival.disconnect());
  const observer = new MutationObserver(() => requestAnimationFrame(callback));
  for (const node of [document.body, document.documentElement]) {
    observer.observe(node, {
      attributes: true,
      attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class", "data-vscode-theme-kind", "style"],
    });
  }
  const query = matchMedia("(prefers-color-scheme: dark)");
  query.addEventListener("change", callback, { signal });
  signal.addEventListener("abort", () => observer.disconnect());
}

export function calm(): boolean {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

const canvasForColors = { ctx: null as CanvasRenderingContext2D | null };

/** [r, g, b] of any CSS colour. */
export function rgbOf(color: string): [number, number, number] {
  if (!canvasForColors.ctx) {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 1;
    canvasForColors.ctx = canvas.getContext("2d", { willReadFrequently: true })!;
  }
  const ctx = canvasForColors.ctx;
  ctx.fillStyle = "#888";
  ctx.fillStyle = color;
  ctx.fillRect(0, 0, 1, 1);
  const data = ctx.getImageData(0, 0, 1, 1).data;
  return [data[0], data[1], data[2]];
}
