/** Sources of a trace's bytes: a service, or a file that contains some of the tensors. */

import { Problem, type Connection } from "../shared/request.svelte";
import { manifestOf, Trace, type Carrier, type Manifest, type Tensor } from "./trace";

/** A trace in the memory of a service. */
export function serverCarrier(connection: Connection, { id, model }: Manifest): Carrier {
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
  const stored = new Set<string>(manifest.tensors.map((one: Tensor) => one.name));
  return new Trace(manifest.about, {
    tensors: (names) => (names.every((name) => stored.has(name)) ? Promise.resolve(buffer) : missing()),
    row: missing,
    weights: missing,
    pieces: missing,
  });
}
