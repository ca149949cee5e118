/**
 * Colours of numbers. Weights are white to dark blue, signed numbers orange over white to blue, which is safe for colour
 * blindness. Each head has its own colour.
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

/** The colour of a weight from 0 to 1; the square root keeps small weights visible. */
export function weightColour(weight: number, dark: boolean): Rgb {
  const { none, most } = dark ? DARK : LIGHT;
  return mix(none, most, Math.sqrt(Math.min(Math.max(weight, 0), 1)));
}

/** The colour of a number from -most to most. */
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

/** A table of colours, which makes pictures fast. */
export interface Scale {
  colours: Uint32Array;
  index: (value: number) => number;
}

const LEVELS = 256;
const packed = ([r, g, b]: Rgb) => ((255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;

/** The scale of weights from 0 to 1; `most` is the colour of 1. */
export function weightScale(dark: boolean, most: Rgb = (dark ? DARK : LIGHT).most): Scale {
  const { none } = dark ? DARK : LIGHT;
  const colours = Uint32Array.from({ length: LEVELS }, (_, i) => packed(mix(none, most, i / (LEVELS - 1))));
  return { colours, index: (weight) => Math.round(Math.sqrt(Math.min(Math.max(weight, 0), 1)) * (LEVELS - 1)) };
}

/** The scale of numbers from -most to most; the last colour is that of infinity. */
export function signedScale(dark: boolean, most: number): Scale {
  const values = Array.from({ length: LEVELS }, (_, i) => (i / (LEVELS - 1)) * 2 - 1);
  const colours = Uint32Array.from([...values.map((value) => signedColour(value, 1, dark)), signedColour(Infinity, 1, dark)], packed);
  return {
    colours,
    index: (value) =>
      Number.isFinite(value) ? Math.round((Math.min(Math.max(value / (most || 1), -1), 1) / 2 + 0.5) * (LEVELS - 1)) : LEVELS,
  };
}

/** A matrix as a picture with one pixel per cell. Above `most` per side, a pixel is the largest of a block. */
export function picture(data: Float32Array, rows: number, columns: number, { colours, index }: Scale, most = 128): ImageData {
  const high = Math.max(Math.min(rows, most), 1);
  const wide = Math.max(Math.min(columns, most), 1);
  const image = new ImageData(wide, high);
  const pixels = new Uint32Array(image.data.buffer);
  if (high === rows && wide === columns) {
    for (let i = 0; i < pixels.length; i++) pixels[i] = colours[index(data[i])];
    return image;
  }
  const largest = new Float32Array(pixels.length).fill(-Infinity);
  for (let i = 0; i < rows; i++) {
    const start = Math.floor((i * high) / rows) * wide;
    for (let j = 0; j < columns; j++) {
      const at = start + Math.floor((j * wide) / columns);
      if (data[i * columns + j] > largest[at]) largest[at] = data[i * columns + j];
    }
  }
  for (let i = 0; i < pixels.length; i++) pixels[i] = colours[index(largest[i])];
  return image;
}

let sheet: HTMLCanvasElement | undefined;

/** A picture as a data URL. */
export function dataUrl(image: ImageData): string {
  sheet ??= document.createElement("canvas");
  sheet.width = image.width;
  sheet.height = image.height;
  sheet.getContext("2d")!.putImageData(image, 0, 0);
  return sheet.toDataURL();
}
