/** Sums over the numbers of a trace. */

export type Numbers = ArrayLike<number>;

export function dot(a: Numbers, b: Numbers): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

export const length = (a: Numbers) => Math.sqrt(dot(a, a));

export const cosine = (a: Numbers, b: Numbers) => dot(a, b) / (length(a) * length(b));

export const total = (a: Numbers) => Array.from(a).reduce((sum, one) => sum + one, 0);

/** The index of the largest number. */
export function largest(a: Numbers): number {
  let best = 0;
  for (let i = 1; i < a.length; i++) if (a[i] > a[best]) best = i;
  return best;
}

export function softmax(scores: Numbers): number[] {
  const most = scores[largest(scores)];
  const powers = Array.from(scores, (score) => Math.exp(score - most));
  const sum = total(powers);
  return powers.map((power) => power / sum);
}

/** The entropy of weights in nats: 0 if one has all. */
export const entropy = (weights: Numbers) =>
  -total(Array.from(weights, (weight) => (weight > 0 ? weight * Math.log(weight) : 0)));

/** The length of the difference, as a share of the length of `a`. */
export function difference(a: Numbers, b: Numbers): number {
  return length(Array.from(a, (one, i) => one - b[i])) / length(a);
}
