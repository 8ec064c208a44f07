"""What tables of docs/benchmarks.md show of a scoreboard: its page holds the data."""
import json
import re

BUDGETS = ("256", "512", "1024", "2048", "10%")


def cells_of(page):
    """{(method with its options, budget): the rows of all tasks and lengths}; an arm without a budget has "".
    resident=all says where pages lie and changes no answer, so it is left out of the name."""
    board = json.loads(re.search(r'id="scoreboard" type="application/json">(.*?)</script>', page.read_text(), re.S)[1])
    cells = {}
    for row in (dict(zip(board["columns"], row)) for row in board["rows"]):
        if row["task"] == "all":
            continue
        name, _, budget = row["arm"].replace(",resident=all", "").partition(":")
        budget, _, option = budget.partition(",")
        cells.setdefault((name + (f", `{option}`" if option else ""), budget), []).append(row)
    return cells


def _kept(rows):
    return f"({100 * sum(row['kept_ratio'] for row in rows) / len(rows):.0f} %)"


def answers_cell(rows):
    """Right answers, and what was read of the bytes of dense attention."""
    return f"{sum(row['right'] for row in rows)} {_kept(rows)}"


def divergence_cell(rows):
    """The mean KL to dense attention, and what was read."""
    return f"{sum(row['divergence'] for row in rows) / len(rows):.3f} {_kept(rows)}"


def head():
    return ["method", *(f"{int(budget):,}" if budget.isdigit() else "10 %" for budget in BUDGETS)]
