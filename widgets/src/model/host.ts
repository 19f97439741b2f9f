// What the views need of whoever holds their state: anywidget's model in a notebook, a stub in an exported file or a test.
//
// Is: the one type that ties the views to a host. Is not: state.

export interface Host {
  get(name: string): any;
  set(name: string, value: unknown): void;
  save_changes(): void;
  send(content: unknown, callbacks?: unknown, buffers?: ArrayBuffer[]): void;
  on(name: string, callback: (...args: any[]) => void): void;
  off(name: string, callback?: (...args: any[]) => void): void;
}

export type Bytes = DataView | ArrayBuffer | Uint8Array;

/** A DataView over whatever a host hands out as binary; byteOffset need not be a multiple of 8. */
export function viewOf(bytes: Bytes): DataView {
  if (bytes instanceof DataView) return bytes;
  if (bytes instanceof ArrayBuffer) return new DataView(bytes);
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** An aligned copy as the given typed array (hosts do not align). */
export function columnOf<T extends Int32Array | Uint8Array | Float64Array | Uint16Array>(
  bytes: Bytes,
  type: { new (buffer: ArrayBuffer): T },
): T {
  const view = viewOf(bytes);
  const copy = view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength) as ArrayBuffer;
  return new type(copy);
}
