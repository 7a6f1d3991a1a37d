/**
 * Reads orders as CSV from standard input and prints a summary as JSON.
 *
 * summary.py prints the same, byte for byte. Amounts are whole hundredths throughout,
 * and EUR is at the rates below.
 */
import { readFileSync } from "node:fs";

const FIELDS = ["id", "date", "customer", "country", "currency", "sku", "quantity", "unit_price", "status"] as const;
type Field = (typeof FIELDS)[number];
type Order = Record<Field, string> & { amount: number };
type Rejection = { row: number; id: string; reason: string };
type Tally = { orders: number; amount: number };

const COUNTED = new Set(["paid", "shipped"]);
const IGNORED = new Set(["cancelled", "refunded"]);
/** Ten-thousandths of a euro for one unit. */
const RATES: Record<string, number> = { EUR: 10000, USD: 9240, GBP: 11810, PLN: 2322, CHF: 10500, JPY: 61, BRL: 1719 };
const TOP = 5;

/** Says why a row is not counted at all. */
class Rejected extends Error {}

/** Splits CSV into records: quoted fields may hold commas, line ends and doubled quotes. */
function* records(text: string): Generator<string[]> {
  let record: string[] = [];
  let field = "";
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    const c = text[i];
    if (quoted) {
      if (c !== '"') field += c;
      else if (text[i + 1] === '"') field += text[++i];
      else quoted = false;
    } else if (c === '"' && field === "") {
      quoted = true;
    } else if (c === ",") {
      record.push(field);
      field = "";
    } else if (c === "\n") {
      record.push(field.endsWith("\r") ? field.slice(0, -1) : field);
      yield record;
      record = [];
      field = "";
    } else {
      field += c;
    }
  }
  if (field !== "" || record.length > 0) yield [...record, field];
}

/** Returns the row as an order, or throws Rejected. */
function parse(values: string[], seen: Set<string>): Order {
  if (values.length !== FIELDS.length) throw new Rejected(`${values.length} fields instead of ${FIELDS.length}`);
  const row = Object.fromEntries(FIELDS.map((f, i) => [f, values[i]])) as Record<Field, string>;
  for (const field of FIELDS) {
    if (row[field] === "") throw new Rejected(`no ${field}`);
  }
  if (seen.has(row.id)) throw new Rejected("id seen before");
  if (!isDate(row.date)) throw new Rejected("bad date");
  if (!/^[A-Z]{2}$/.test(row.country)) throw new Rejected("bad country");
  if (!Object.hasOwn(RATES, row.currency)) throw new Rejected("unknown currency");
  if (!/^[1-9][0-9]{0,5}$/.test(row.quantity)) throw new Rejected("bad quantity");
  const price = /^([0-9]{1,7})(?:\.([0-9]{2}))?$/.exec(row.unit_price);
  if (!price) throw new Rejected("bad unit_price");
  if (!COUNTED.has(row.status) && !IGNORED.has(row.status)) throw new Rejected("unknown status");
  seen.add(row.id);
  return { ...row, amount: Number(row.quantity) * (Number(price[1]) * 100 + Number(price[2] ?? 0)) };
}

function isDate(text: string): boolean {
  if (!/^[0-9]{4}-[0-9]{2}-[0-9]{2}$/.test(text)) return false;
  const date = new Date(`${text}T00:00:00Z`);
  return !Number.isNaN(date.getTime()) && date.toISOString().startsWith(text);
}

function inEur(amount: number, currency: string): number {
  return Math.floor((amount * RATES[currency] + 5000) / 10000);
}

function money(hundredths: number): string {
  return `${Math.floor(hundredths / 100)}.${String(hundredths % 100).padStart(2, "0")}`;
}

/** Adds one order to the tally of a key. */
function add(tallies: Map<string, Tally>, key: string[], amount: number): void {
  const k = key.join("\t");
  const tally = tallies.get(k) ?? { orders: 0, amount: 0 };
  tally.orders++;
  tally.amount += amount;
  tallies.set(k, tally);
}

/** Compares by code points, as Python does, and not by UTF-16 units. */
function compare(a: string, b: string): number {
  return Buffer.compare(Buffer.from(a), Buffer.from(b));
}

function main(): void {
  const rows = records(readFileSync(0, "utf8"));
  if (rows.next().value?.join(",") !== FIELDS.join(",")) {
    console.error(`summary: the first line must be ${FIELDS.join(",")}`);
    process.exit(1);
  }

  const seen = new Set<string>();
  const rejected: Rejection[] = [];
  const months = new Map<string, Tally>();
  const customers = new Map<string, Tally>();
  let read = 0;
  let counted = 0;
  let ignored = 0;
  let total = 0;
  for (const values of rows) {
    if (values.length === 1 && values[0] === "") continue; // an empty line
    read++;
    let row: Order;
    try {
      row = parse(values, seen);
    } catch (e) {
      if (!(e instanceof Rejected)) throw e;
      rejected.push({ row: read, id: values[0], reason: e.message });
      continue;
    }
    if (IGNORED.has(row.status)) {
      ignored++;
      continue;
    }
    counted++;
    const eur = inEur(row.amount, row.currency);
    total += eur;
    add(months, [row.country, row.date.slice(0, 7), row.currency], row.amount);
    add(customers, [row.customer, row.country], eur);
  }

  const ranked = [...customers].sort(([a, x], [b, y]) => y.amount - x.amount || compare(a, b)).slice(0, TOP);
  const summary = {
    rows: read,
    counted,
    ignored,
    rejectedRows: rejected.length,
    totalEur: money(total),
    topCustomers: ranked.map(([key, t]) => {
      const [customer, country] = key.split("\t");
      return { customer, country, orders: t.orders, totalEur: money(t.amount) };
    }),
    months: [...months].sort(([a], [b]) => compare(a, b)).map(([key, t]) => {
      const [country, month, currency] = key.split("\t");
      return { country, month, currency, orders: t.orders, total: money(t.amount) };
    }),
    rejected,
  };
  console.log(JSON.stringify(summary, null, 2));
}

main();
