/**
 * What colours mean. Weights go from the paper's white to a deep blue; signed numbers from orange over nothing to blue,
 * which people who confuse red and green tell apart; each head has a colour of its own.
 */

export type Rgb = [number, number, number];

export const HEADS = ["#2f6fde", "#e07b00", "#0f9d76", "#c2559d", "#8a63d2", "#c7472e", "#2797b8", "#8b8b1a"];

export const headColour = (head: number) => HEADS[head % HEADS.length];

const LIGHT = { none: [255, 255, 255] as Rgb, most: [23, 62, 148] as Rgb, less: [196, 92, 0] as Rgb };
const DARK = { none: [27, 30, 37] as Rgb, most: [122, 176, 255] as Rgb, less: [255, 166, 77] as Rgb };

const mix = (from: Rgb, to: Rgb, share: number): Rgb => [
  from[0] + (to[0] - from[0]) * share,
  from[1] + (to[1] - from[1]) * share,
  from[2] + (to[2] - from[2]) * share,
];

/** From 0 to 1. Small weights are lifted a little, so that they are seen. */
export function weightColour(weight: number, dark: boolean): Rgb {
  const { none, most } = dark ? DARK : LIGHT;
  return mix(none, most, Math.sqrt(Math.min(Math.max(weight, 0), 1)));
}

/** From -most over 0 to most. */
export function signedColour(value: number, most: number, dark: boolean): Rgb {
  const scheme = dark ? DARK : LIGHT;
  if (!Number.isFinite(value)) return mix(scheme.none, dark ? [255, 255, 255] : [0, 0, 0], 0.12);
  const share = most ? Math.min(Math.abs(value) / most, 1) : 0;
  return mix(scheme.none, value < 0 ? scheme.less : scheme.most, share);
}

export const css = ([r, g, b]: Rgb) => `rgb(${Math.round(r)} ${Math.round(g)} ${Math.round(b)})`;

export function fromHex(hex: string): Rgb {
  const value = Number.parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** Weights of an attention as a picture, a pixel a cell; where there are more than `most` a side, the largest of each block. */
export function picture(
  data: Float32Array,
  rows: number,
  columns: number,
  colour: (value: number) => Rgb,
  most = 128,
): ImageData {
  const high = Math.min(rows, most);
  const wide = Math.min(columns, most);
  const image = new ImageData(Math.max(wide, 1), Math.max(high, 1));
  const plain = high === rows && wide === columns;
  for (let y = 0; y < high; y++) {
    const [top, bottom] = [Math.floor((y * rows) / high), Math.floor(((y + 1) * rows) / high)];
    for (let x = 0; x < wide; x++) {
      let value = 0;
      if (plain) value = data[y * columns + x];
      else {
        const [left, right] = [Math.floor((x * columns) / wide), Math.floor(((x + 1) * columns) / wide)];
        for (let i = top; i < bottom; i++)
          for (let j = left; j < right; j++) value = Math.max(value, data[i * columns + j]);
      }
      const [r, g, b] = colour(value);
      image.data.set([r, g, b, 255], (y * wide + x) * 4);
    }
  }
  return image;
}
