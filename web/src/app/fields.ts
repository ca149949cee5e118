/** Fields of the view: the parts of the page's state that are in its address. Each room declares its own. */

export interface Field<T extends string | number | boolean> {
  /** The value that the address omits. */
  first: T;
  /** Limits of a number. */
  least?: number;
  most?: number;
  whole?: boolean;
  /** Whether the value belongs to one text, so that another text resets it. */
  perText?: boolean;
  /** The name in addresses of version 0.1, if it was another. */
  formerly?: string;
}

export type Fields = Record<string, Field<any>>;

export type ValuesOf<F extends Fields> = { [name in keyof F]: F[name] extends Field<infer T> ? T : never };

type Options<T extends string | number | boolean> = Omit<Field<T>, "first">;

export const text = (first = "", options: Options<string> = {}): Field<string> => ({ first, ...options });
export const flag = (first = false, options: Options<boolean> = {}): Field<boolean> => ({ first, ...options });
export const number = (first: number, least: number, most: number, options: Options<number> = {}): Field<number> => ({
  first,
  least,
  most,
  ...options,
});
export const integer = (first: number, least: number, most: number, options: Options<number> = {}): Field<number> =>
  number(first, least, most, { whole: true, ...options });

export function firstValues<F extends Fields>(fields: F): ValuesOf<F> {
  return Object.fromEntries(Object.entries(fields).map(([name, { first }]) => [name, first])) as ValuesOf<F>;
}

/** The values that another text resets. */
export function perText<F extends Fields>(fields: F): Partial<ValuesOf<F>> {
  return Object.fromEntries(
    Object.entries(fields).flatMap(([name, field]) => (field.perText ? [[name, field.first]] : [])),
  ) as Partial<ValuesOf<F>>;
}

/** Read the values in a query string. Missing and invalid ones are the first, those beyond a limit are the limit. */
export function fromQuery<F extends Fields>(fields: F, query: string): ValuesOf<F> {
  const given = new URLSearchParams(query);
  const values = Object.entries(fields).map(([name, field]) => {
    const value = given.get(name) ?? given.get(field.formerly ?? name);
    return [name, value === null ? field.first : parse(field, value)];
  });
  return Object.fromEntries(values) as ValuesOf<F>;
}

function parse({ first, least = -Infinity, most = Infinity, whole }: Field<any>, value: string): string | number | boolean {
  if (typeof first === "string") return value;
  if (typeof first === "boolean") return value === "1";
  const number = Number(value);
  if (value.trim() === "" || !Number.isFinite(number)) return first;
  const inside = Math.min(Math.max(number, least), most);
  return whole ? Math.round(inside) : inside;
}

/** Write values as a query string, without those that are the first. */
export function toQuery<F extends Fields>(fields: F, values: ValuesOf<F>): string {
  const query = new URLSearchParams();
  for (const [name, { first }] of Object.entries(fields)) {
    const value: unknown = values[name];
    if (value !== first) query.set(name, typeof value === "boolean" ? (value ? "1" : "0") : String(value));
  }
  return query.size ? `?${query}` : "";
}
