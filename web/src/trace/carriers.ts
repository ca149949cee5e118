/** Sources of a trace's bytes: a service, or a file that contains some of the tensors. */

import type { components } from "../generated";
import { Problem, type Connection } from "../shared/request.svelte";
import { manifestOf, read, row, Trace, type Carrier } from "./trace";

/** A trace in the memory of a service. */
export function serverCarrier(connection: Connection, { id, model }: components["schemas"]["TraceAnswer"]): Carrier {
  const trace = `/v1/trace/${encodeURIComponent(id)}`;
  const owner = `/v1/models/${encodeURIComponent(model)}`;
  const bytes = (path: string) => connection.read(connection.send(path), (answer) => answer.arrayBuffer());
  const floats = async (path: string) => new Float32Array(await bytes(path));
  return {
    tensors(names, dtype) {
      const query = new URLSearchParams([...names.map((name) => ["names", name]), ["dtype", dtype]]);
      return bytes(`${trace}?${query}`);
    },
    row: (name, row) => floats(`${trace}/${encodeURIComponent(name)}?row=${row}&dtype=f32`),
    weights(parameter, row) {
      const which = row === undefined ? "" : `?row=${row}`;
      return floats(`${owner}/weights/${encodeURIComponent(parameter)}${which}`);
    },
    async pieces(ids) {
      const query = new URLSearchParams(ids.map((id) => ["ids", String(id)]));
      const answer = connection.send(`${owner}/pieces?${query}`);
      return (await connection.read(answer, (found) => found.json())).pieces;
    },
  };
}

/** A trace from a file. Requests for tensors that the file does not contain are problems. */
export function storedTrace(buffer: ArrayBuffer): Trace {
  const missing = () => Promise.reject(new Problem(404, "The stored trace does not contain these numbers."));
  const manifest = manifestOf(buffer);
  const stored = new Set(manifest.tensors.map((one) => one.name));
  return new Trace(manifest, {
    tensors: (names) => (names.every((name) => stored.has(name)) ? Promise.resolve(buffer) : missing()),
    row: (name, at) => (stored.has(name) ? Promise.resolve(row(read(buffer).find((one) => one.name === name)!, at)) : missing()),
    weights: missing,
    pieces: missing,
  });
}
