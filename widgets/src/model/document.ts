// Exported files: state from text, and a host that has no kernel behind it.
//
//   state = u32 header_bytes | header (JSON; {"$bytes": [offset, length]} stands for binary) | binary, little-endian
//
// Is: the other end of ccl_lab/widgets/export.py. Is not: drawing.
import { Host } from "./host";

export async function unpack(text: string): Promise<any[]> {
  const packed = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const raw = await new Response(stream).arrayBuffer();
  const size = new DataView(raw).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(raw, 4, size)));
  const restore = (value: any): any => {
    if (Array.isArray(value)) return value.map(restore);
    if (value === null || typeof value !== "object") return value;
    if (value.$bytes) return new DataView(raw, 4 + size + value.$bytes[0], value.$bytes[1]);
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, restore(item)]));
  };
  return restore(header);
}

/** A host without a kernel: keeps what is set, hears nothing. */
export function detachedHost(state: Record<string, any>): Host {
  const values: Record<string, any> = { ...state, detached: true };
  const listeners = new Map<string, Set<(...args: any[]) => void>>();
  return {
    get: (name) => values[name],
    set(name, value) {
      values[name] = value;
      for (const callback of listeners.get(`change:${name}`) ?? []) callback();
    },
    save_changes() {},
    send() {},
    on(name, callback) {
      if (!listeners.has(name)) listeners.set(name, new Set());
      listeners.get(name)!.add(callback);
    },
    off(name, callback) {
      if (callback) listeners.get(name)?.delete(callback);
      else listeners.delete(name);
    },
  };
}
