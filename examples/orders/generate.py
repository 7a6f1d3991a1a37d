"""Writes the orders.csv beside it, the same on every machine: python3 generate.py > orders.csv

A year of a small shop's orders, with what real exports hold: quoted commas and quotes,
names in many scripts, fields left empty, and some rows that no report may count.
"""

import csv
import datetime
import random
import sys

ORDERS = 4000

# country: currency, size of the market, price level, customers
MARKETS = {
    "DE": ("EUR", 26, 1.0, ["Müller & Söhne GmbH", "Bäckerei Groß", "Atelier Weiß, Inh. J. Weiß", "Kranich Logistik AG"]),
    "US": ("USD", 24, 1.1, ["Acme Supply, Inc.", 'The "Corner" Store', "O'Hara Hardware", "Blue Ridge Outfitters, LLC"]),
    "GB": ("GBP", 14, 0.9, ["Thistle & Thorn Ltd", "Penrose Books", "Harbour Light, Whitby"]),
    "FR": ("EUR", 12, 1.0, ["Librairie L'Étoile", "Château d'Eau SARL", "Ça et Là"]),
    "PL": ("PLN", 8, 4.2, ["Żuraw Sp. z o.o.", "Piekarnia Łąka"]),
    "CH": ("CHF", 6, 1.2, ["Zürcher Uhren AG", "Käserei Emmental"]),
    "JP": ("JPY", 6, 160.0, ["株式会社さくら", "山本商店"]),
    "BR": ("BRL", 4, 5.5, ["São João Comércio", "Pão de Açúcar Café"]),
}
ITEMS = [("TEA-001", 6.90), ("TEA-014", 12.50), ("CUP-220", 18.00), ("KTL-500", 64.00), ("KTL-510", 89.90),
         ("TIN-030", 9.75), ("SPN-003", 3.20), ("GFT-100", 45.00), ("GFT-250", 119.00)]
STATUSES = ["shipped"] * 16 + ["paid"] * 4 + ["cancelled"] * 2 + ["refunded"]
FIELDS = ["id", "date", "customer", "country", "currency", "sku", "quantity", "unit_price", "status"]

rng = random.Random(20240101)


def pick(values):
    """Like rng.choice, whose algorithm Python does not promise to keep."""
    return values[int(rng.random() * len(values))]


def order(number):
    country = pick([c for c, market in MARKETS.items() for _ in range(market[1])])
    currency, _, level, customers = MARKETS[country]
    sku, price = pick(ITEMS)
    price = price * level * (0.95 + 0.1 * rng.random())
    date = datetime.date(2024, 1, 1) + datetime.timedelta(days=int(rng.random() * 366))
    return {
        "id": f"SO-{number:05d}",
        "date": date.isoformat(),
        "customer": pick(customers),
        "country": country,
        "currency": currency,
        "sku": sku,
        "quantity": str(1 + int(rng.random() ** 3 * 40)),
        "unit_price": f"{price:.0f}" if currency == "JPY" else f"{price:.2f}",
        "status": pick(STATUSES),
    }


def spoil(row):
    """One of the faults that a year of typing leaves behind."""
    field, value = pick([
        ("customer", ""), ("date", ""), ("date", "2024-02-30"), ("date", "12/24/2024"), ("currency", "XXX"),
        ("quantity", "0"), ("quantity", "-3"), ("quantity", "two"), ("unit_price", "12,50"), ("unit_price", ""),
        ("status", "shiped"), ("country", "Germany"),
    ])
    row[field] = value


def main():
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(FIELDS)
    last = None
    for number in range(1, ORDERS + 1):
        row = order(number)
        if rng.random() < 0.01:
            spoil(row)
        if last and rng.random() < 0.001:
            row["id"] = last["id"]  # exported twice
        values = list(row.values())
        if rng.random() < 0.001:
            values = values[:-2]  # cut off
        out.writerow(values)
        last = row


main()
