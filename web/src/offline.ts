/** A page without a service: it shows the trace that its file contains, in base64, in the element #trace. */

import { mountTrace } from "./app/mountTrace";

const stored = atob(document.getElementById("trace")!.textContent!.trim());
mountTrace(document.getElementById("app")!, Uint8Array.from(stored, (byte) => byte.charCodeAt(0)).buffer);
