"""Reads orders as CSV from standard input and prints a summary as JSON.

summary.ts prints the same, byte for byte. Amounts are whole hundredths throughout,
and EUR is at the rates below.
"""

import csv
import datetime
import json
import re
import sys

FIELDS = ["id", "date", "customer", "country", "currency", "sku", "quantity", "unit_price", "status"]
COUNTED = {"paid", "shipped"}
IGNORED = {"cancelled", "refunded"}
# ten-thousandths of a euro for one unit
RATES = {"EUR": 10000, "USD": 9240, "GBP": 11810, "PLN": 2322, "CHF": 10500, "JPY": 61, "BRL": 1719}
TOP = 5


class Rejected(Exception):
    """Says why a row is not counted at all."""


def parse(values, seen):
    """Returns the row as a dict with amounts in hundredths, or raises Rejected."""
    if len(values) != len(FIELDS):
        raise Rejected(f"{len(values)} fields instead of {len(FIELDS)}")
    row = dict(zip(FIELDS, values))
    for field in FIELDS:
        if row[field] == "":
            raise Rejected(f"no {field}")
    if row["id"] in seen:
        raise Rejected("id seen before")
    if not is_date(row["date"]):
        raise Rejected("bad date")
    if not re.fullmatch("[A-Z]{2}", row["country"]):
        raise Rejected("bad country")
    if row["currency"] not in RATES:
        raise Rejected("unknown currency")
    if not re.fullmatch("[1-9][0-9]{0,5}", row["quantity"]):
        raise Rejected("bad quantity")
    price = re.fullmatch(r"([0-9]{1,7})(?:\.([0-9]{2}))?", row["unit_price"])
    if not price:
        raise Rejected("bad unit_price")
    if row["status"] not in COUNTED | IGNORED:
        raise Rejected("unknown status")
    seen.add(row["id"])
    row["amount"] = int(row["quantity"]) * (int(price[1]) * 100 + int(price[2] or 0))
    return row


def is_date(text):
    if not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return False
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def in_eur(amount, currency):
    return (amount * RATES[currency] + 5000) // 10000


def money(hundredths):
    return f"{hundredths // 100}.{hundredths % 100:02d}"


def main():
    # The bytes are UTF-8 whatever the locale says.
    sys.stdin.reconfigure(encoding="utf-8", newline="")
    sys.stdout.reconfigure(encoding="utf-8")
    rows = csv.reader(sys.stdin)
    if next(rows, None) != FIELDS:
        sys.exit("summary: the first line must be " + ",".join(FIELDS))

    seen, rejected, months, customers = set(), [], {}, {}
    read = counted = ignored = total = 0
    for values in rows:
        if not values:
            continue  # an empty line
        read += 1
        try:
            row = parse(values, seen)
        except Rejected as reason:
            rejected.append({"row": read, "id": values[0], "reason": str(reason)})
            continue
        if row["status"] in IGNORED:
            ignored += 1
            continue
        counted += 1
        eur = in_eur(row["amount"], row["currency"])
        total += eur
        month = months.setdefault((row["country"], row["date"][:7], row["currency"]), [0, 0])
        month[0] += 1
        month[1] += row["amount"]
        customer = customers.setdefault((row["customer"], row["country"]), [0, 0])
        customer[0] += 1
        customer[1] += eur

    ranked = sorted(customers.items(), key=lambda c: (-c[1][1], c[0]))[:TOP]
    summary = {
        "rows": read,
        "counted": counted,
        "ignored": ignored,
        "rejectedRows": len(rejected),
        "totalEur": money(total),
        "topCustomers": [
            {"customer": name, "country": country, "orders": n, "totalEur": money(eur)}
            for (name, country), (n, eur) in ranked
        ],
        "months": [
            {"country": country, "month": month, "currency": currency, "orders": n, "total": money(amount)}
            for (country, month, currency), (n, amount) in sorted(months.items())
        ],
        "rejected": rejected,
    }
    print(json.dumps(summary, indent=2, ensure_ascii=False))


main()
