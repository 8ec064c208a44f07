#!/usr/bin/env python3
"""Writes what docs/benchmarks.md shows of bench/results: its tables, and the picture docs/images/methods-30k.svg.

    scripts/make-tables.py [--check]

A table stands between `<!-- table NAME -->` and `<!-- /table -->`; what was there is replaced. With --check nothing is
written, and the exit status is 1 where a table or the picture is not what the results say.
"""
import json
import math
import pathlib
import re
import sys

sys.dont_write_bytecode = True
import board_tables  # noqa: E402
import one_line  # noqa: E402
from methods_picture import picture_of  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
PAGE = ROOT / "docs/benchmarks.md"
PICTURE = ROOT / "docs/images/methods-30k.svg"
SCOREBOARD, EMBEDDED = ROOT / "docs/scoreboard.html", ROOT / "docs/scoreboard-embedded.html"
ISA = "avx512-bf16"  # whose files the tables show, unless a column says otherwise

ORDER = ["llama.cpp", "full", "auto", "tidal", "lychee-decode", "evosparse", "lychee-cluster", "kascade", "quest", "omnikv",
         "lessismore", "clusterkv", "shadowkv", "arkvale", "seer", "streaming", "h2o", "tova", "raas", "duo", "razor",
         "oracle"]
PAPERS = {"tidal", "lychee-decode", "evosparse", "lychee-cluster", "kascade"}


class Results:
    """Files of bench/results, and which of them a table used."""

    def __init__(self):
        self.used = []

    def load(self, name, isa=ISA):
        path = RESULTS / f"{name}-{isa}.json"
        if path not in self.used:
            self.used.append(path)
        return json.loads(path.read_text())


def base(method):
    return method.split("/")[0].split(",")[0]


def by_order(methods):
    """As ORDER has them, variants behind their method."""
    return sorted(methods, key=lambda m: (ORDER.index(base(m)), m))


def label(method):
    """`tidal`, `reselect=18`: a method and its options."""
    name, *options = method.split("/")
    return name + "".join(f", `{option}`" for option in options)


def percent(share):
    return f"{100 * share:.0f} %"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def speeds(results, name, measure="decode", isa=ISA):
    return [row for row in results.load(name, isa)["rows"] if row["measure"] == measure]


def methods_table(results, columns=(("methods-8k", 8192), ("methods-30k", 30000)), isa=ISA):
    found = {}
    for name, tokens in columns:
        for row in speeds(results, name, isa=isa):
            if row["tokens"] == tokens:
                found.setdefault((row["method"], row["budget"]), {})[tokens] = row
    dense = {tokens: row["bytes_per_token"] for tokens, row in found["full", ""].items()}
    rows = []
    for method in by_order({method for method, _ in found}):
        for (name, budget), at in found.items():
            if name != method:
                continue
            cells = [label(method) + (f", {budget.replace('%', ' %')}" if budget not in ("", "512") else "")]
            for _, tokens in columns:
                row = at.get(tokens)
                if row is None:
                    cells += ["", "", "", ""]
                    continue
                cells += [f"{row['median_ms']:.1f}", f"{row['over_llama']:.1f}",
                          f"{row['attention_ms']:.1f}" if "attention_ms" in row else "",
                          percent(row["bytes_per_token"] / dense[tokens]) if "bytes_per_token" in row else ""]
            rows.append(cells)
    head = ["method"]
    for _, tokens in columns:
        head += [f"{'8K' if tokens == 8192 else '30K'}: ms", "x llama.cpp", "attention ms", "cache read"]
    return table(head, rows)


def small_table(results):
    rows = speeds(results, "embedded")
    tokens = sorted({row["tokens"] for row in rows})
    body = []
    for method in by_order({row["method"] for row in rows}):
        cells = [method]
        for count in tokens:
            row = next(row for row in rows if row["method"] == method and row["tokens"] == count)
            cells.append(f"{row['median_ms']:.1f} ({row['over_llama']:.2f}x)")
        body.append(cells)
    return table(["method"] + [f"behind {count:,} tokens" for count in tokens], body)


def prefill_table(results):
    body, at = {}, {}
    for name, tokens in (("prefill-8k", 8192), ("prefill-30k", 30000)):
        for row in speeds(results, name, "prefill"):
            at[row["method"], tokens] = row
            body.setdefault(row["method"], row["budget"])
    rows = []
    for method in by_order(body):
        cells = [label(method) + (", sparse prefill" if method != "full" and method != "llama.cpp" else "")]
        for tokens in (8192, 30000):
            row = at.get((method, tokens))
            cells += ["", ""] if row is None else [
                f"{row['median_ms'] / 1e3:.1f}" + (f" ({row['over_llama']:.2f}x)" if "over_llama" in row else ""),
                f"{row['attention_ms'] / 1e3:.1f}" if "attention_ms" in row else ""]
        rows.append(cells)
    return table(["method", "8,192 tokens: s", "attention s", "30,000 tokens: s", "attention s"], rows)


LENGTHS = (("8K", "8k"), ("16K", "16k"), ("30K", "30k"))
BUDGETS = ("512", "1024", "10%")


def answer_rows(results, at):
    """Of the scoreboard answers-AT, with a method and a budget for its arm, or of retrieval-AT where there is none yet."""
    if not (RESULTS / f"answers-{at}-{ISA}.json").exists():
        return results.load(f"retrieval-{at}")["rows"]
    file = results.load(f"answers-{at}")
    rows = [dict(zip(file["columns"], row)) for row in file["rows"]]
    for row in rows:
        arm, *options = row["arm"].split(",")
        name, _, row["budget"] = arm.partition(":")
        row["method"] = "/".join([name, *options])
    return rows


def found_by(results, tasks, at):
    """{(method, budget): [right, asked]} summed over tasks."""
    cells = {}
    for row in answer_rows(results, at):
        if row.get("task") in tasks:
            sums = cells.setdefault((row["method"], row["budget"]), [0, 0])
            sums[0] += row["right"]
            sums[1] += row["asked"]
    return cells


def retrieval_table(results, tasks, budgets):
    cells = {name: found_by(results, tasks, name) for _, name in LENGTHS}
    asked = {name: max(count for _, count in cells[name].values()) for _, name in LENGTHS}
    rows = []
    for method in by_order({method for at in cells.values() for method, _ in at}):
        row = [label(method)]
        for _, name in LENGTHS:
            if method == "full":
                right, count = cells[name][method, ""]
                row.append(percent(right / count))
                continue
            shown = []
            for budget in budgets:
                right, count = cells[name].get((method, budget), (0, 0))
                shown.append(f"{100 * right / count:.0f}" if 2 * count >= asked[name] else "-")
            row.append(", ".join(shown) if set(shown) != {"-"} else "")
        if any(row[1:]):
            rows.append(row)
    return table(["method"] + [f"{at}: % of {asked[name]}" for at, name in LENGTHS], rows)


def needles_table(results):
    return retrieval_table(results, ("single", "multikey"), BUDGETS)


def answers_table(results):
    variables = {name: found_by(results, ("vt",), name) for _, name in LENGTHS}
    passkeys = {name: found_by(results, ("passkey",), name) for _, name in LENGTHS}
    rows = []
    for method in by_order({method for method, _ in variables["16k"]}):
        row = [label(method)]
        for cells in (variables, passkeys):
            for _, name in LENGTHS:
                right, count = cells[name].get((method, "" if method == "full" else "1024"), (0, 0))
                row.append(f"{right}/{count}" if count else "")
        rows.append(row)
    head = ["method"] + [f"{what}, {at}" for what in ("variables", "passkey") for at, _ in LENGTHS]
    return table(head, rows)


def fidelity_table(results):
    found = {}
    for isa in (ISA, "avx512"):
        for row in results.load("fidelity-6k", isa)["rows"]:
            if "kl" in row and row["method"] != "full":
                found.setdefault(row["method"], {}).setdefault(row["budget"], row)
    rows = []
    for method in by_order(found):
        at = found[method]
        if "512" not in at:
            continue
        middle = at["512"]
        mass = [f"{middle[key]:.2f}" if key in middle else "" for key in ("mass", "best_mass")]
        rows.append([label(method)] + [f"{at[budget]['kl']:.3f}" if budget in at else "" for budget in
                                       ("256", "512", "1024")] + [percent(middle["top1_agreement"])] + mass)
    return table(["method", "KL at 256", "512", "1,024", "same top token", "mass", "best mass"], rows)


def lossless_table(results):
    rows = []
    for name in ("lossless-8k", "lossless-30k"):
        file = results.load(name)
        for row in file["rows"]:
            drafted = f"{row['accepted']} of {row['drafted']}" if row["drafted"] else "none drafted"
            rows.append([f"{label(row['method'])}, {row['budget'].replace('%', ' %')}",
                         f"{file['settings']['prompt_tokens']:,}", row["drafts"] or "adaptive",
                         f"{row['speed_over_dense']:.2f}", drafted, f"{row.get('draft_ms', 0):.1f}",
                         f"{row.get('verify_ms', 0):.1f}", f"{row['same_answers']} of {file['settings']['prompts']}"])
    return table(["method", "prompt", "drafts", "x dense", "accepted", "a draft, ms", "a verification, ms",
                  "same answers"], rows)


def layers_table(results):
    rows = []
    for row in results.load("layers-16k")["rows"]:
        if "refused" in row:
            continue
        selects = row.get("select_us", 0) > 0
        method = label(row["method"]) + (", " + row["budget"].replace("%", " %") if "%" in row["budget"] else "")
        rows.append([method, row["kind"].replace("select and read all", "select, read all"),
                     f"{row['select_bytes'] / 1e6:.2f}" if selects else "", f"{row['select_us']:.0f}" if selects else "",
                     f"{row['attend_bytes'] / 1e6:.2f}", f"{row['attend_us']:.0f}", f"{row['fraction']:.2f}"])
    seen, shown = set(), []
    for row in rows:  # layers that are dense in a method are those of `full`
        key = tuple(row[1:2]) if row[1] == "dense" else tuple(row[:2])
        if key not in seen:
            seen.add(key)
            shown.append(row)
    return table(["method", "layer", "select: MB", "us", "attend: MB", "us", "of bandwidth"], shown)


KERNELS = [("read all", "dense {}"), ("read 2,048 listed rows", "gathered {}"), ("score all", "score {}"),
           ("verify 5 rows", "verify 5 rows {}"), ("prefill 512 rows at 7,680", "prefill 512 rows at 7680 {}")]
SHAPES = [("3 x 3, 64", "h3 g3 d64"), ("8 x 4, 128", "h8 g4 d128"), ("4 x 8, 128", "h4 g8 d128")]


def kernels_table(results):
    files = [{row["case"]: row for row in results.load("kernels", isa)["rows"]} for isa in (ISA, "avx512")]
    rows = []
    for what, pattern in KERNELS:
        for shape, ending in SHAPES:
            for kind in ("f32", "f16", "bf16", "q8_0"):
                case = pattern.format(f"{kind} {ending}")
                cells = []
                for file in files:
                    row = file.get(case)
                    of = row["fraction"] if row else 0
                    cells += [f"{of:.2f}" if of else "", f"{row['gflops']:.0f}" if row else ""]
                if any(cells):
                    rows.append([what, shape, kind, *cells])
    return table(["kernel", "heads x group, dim", "cache", "Zen 5: of bandwidth", "GFLOP/s", "Xeon: of bandwidth",
                  "GFLOP/s"], rows)


def cuda_table(results):
    file = results.load("cuda-attention", "sm90")
    cells = {(row["batch"], row["tokens"], row["what"]): row for row in file["rows"]}
    names = [("dense", "dense"), ("gathered", "10 % of the tokens"), ("a quarter dense", "a quarter of the heads dense"),
             ("anchor", "score, select 10 %, attend")]
    rows = []
    for tokens in (8192, 32768, 131072):
        for batch in (1, 8, 64):
            dense = cells[batch, tokens, "dense"]["us"]
            for what, said in names:
                row = cells[batch, tokens, what]
                torch = min(cells[batch, tokens, "torch flash"]["us"], cells[batch, tokens, "torch cudnn"]["us"])
                paged = cells[batch, tokens, "flashinfer"]["us"]
                rows.append([f"{tokens // 1024}K x {batch}", said, f"{row['us']:.1f}", f"{row['of_read']:.2f}",
                             f"{dense / row['us']:.2f}", f"{torch / row['us']:.2f}", f"{paged / row['us']:.2f}"])
    return table(["tokens x sequences", "heads read", "us a layer", "of read bandwidth", "x our dense", "x torch",
                  "x FlashInfer"], rows)


def cuda_prefill_table(results):
    file = results.load("cuda-prefill", "sm90")
    cells = {(row["rows"], row["tokens"], row["what"]): row for row in file["rows"]}
    rows = []
    for (count, tokens, what), row in cells.items():
        if what != "prefill":
            continue
        torch = [cells[count, tokens, f"torch {name} prefill"] for name in ("flash", "cudnn")]
        rows.append([f"{count:,}", f"{tokens // 1024}K", f"{row['us']:.0f}", f"{row['tflops']:.0f}",
                     *(f"{other['us']:.0f} ({other['tflops']:.0f})" for other in torch)])
    return table(["rows", "tokens", "us a layer", "TFLOP/s", "torch flash", "torch cuDNN"], rows)


def calibrated_table(results):
    """Of scoreboards on a GPU under a profile: needles, variables and passkeys by length."""
    parts = (("single", "multikey"), ("vt",), ("passkey",))
    cells, read, asked, arms = {}, {}, {}, {}
    for _, at in LENGTHS:
        file = results.load(f"answers-{at}", "sm90")
        for row in (dict(zip(file["columns"], row)) for row in file["rows"]):
            arms[row["arm"]] = None
            for part in parts:
                if row["task"] in part:
                    sums = cells.setdefault((row["arm"], at, part), [0, 0])
                    sums[0] += row["right"]
                    sums[1] += row["asked"]
                    asked[at, part] = sums[1]
            if row["task"] == "multikey":
                read[row["arm"], at] = row["kept_ratio"]
    rows = []
    for arm in arms:
        method, *options = arm.split(",")
        name, _, budget = method.partition(":")
        if budget == "512":
            continue
        shown = [", ".join([label("/".join([name, *options])), *([budget.replace("%", " %")] if budget else [])])]
        for _, at in LENGTHS:
            found = ", ".join(f"{100 * cells[arm, at, part][0] / cells[arm, at, part][1]:.0f}" for part in parts)
            shown += [found, f"{100 * read[arm, at]:.0f} %"]
        rows.append(shown)
    head = ["method"]
    for shown, at in LENGTHS:
        head += [f"{shown}: % of {', '.join(str(asked[at, part]) for part in parts)}", "read"]
    return table(head, rows)


def steps_of(file, what="step"):
    return {(row["batch"], row["depth"], row.get("arm")): row for row in file["rows"] if row["what"] == what}


def cuda_step_table(results):
    """Of batches beside llama.cpp."""
    file = results.load("cuda-step-q4k", "sm90")
    steps, beside = steps_of(file), steps_of(file, "llama.cpp")
    rows = []
    for (batch, depth, arm), row in steps.items():
        name = re.sub(r"(\d)%", r"\1 %", arm.split(",")[0].replace(":", ", "))
        llama = beside.get((batch, depth, None))
        rows.append([f"{depth // 1024}K x {batch}", name, f"{row['ms']:.2f}", f"{row['kv_bytes'] / 1e9:.2f}",
                     f"{row['of_read']:.2f}", f"{steps[batch, depth, 'full']['ms'] / row['ms']:.2f}",
                     f"{llama['ms'] / row['ms']:.2f}" if llama else ""])
    return table(["tokens x sequences", "method", "ms a step", "GB of K and V", "of read bandwidth", "x dense",
                  "x llama.cpp"], rows)


def cuda_index_table(results):
    """Methods with an index that a prompt's end builds: their steps, and the first one, beside the prompt's time."""
    file = results.load("cuda-index-q4k", "sm90")
    steps, built = steps_of(file), steps_of(file, "index")
    prefill, rows = 0, []
    depths = {}
    for row in file["rows"]:
        if row["what"] == "prefill":
            prefill += row["s"]
            depths[row["depth"]] = prefill
    for (batch, depth, arm), row in steps.items():
        first = built.get((batch, depth, arm))
        method, _, options = arm.partition(",")
        name = method.replace(":", ", ") + (f", `{options.replace(',', ' ')}`" if options else "")
        rows.append([f"{depth // 1024}K", name, f"{row['ms']:.2f}", f"{steps[batch, depth, 'full']['ms'] / row['ms']:.2f}",
                     f"{100 * row['recalled']:.0f} %" if "recalled" in row else "",
                     f"{first['s']:.2f}" if first else "", f"{100 * first['s'] / depths[depth]:.0f} %" if first else ""])
    return table(["tokens", "method", "ms a step", "x dense", "pages from the host", "first step, s", "of the prefill"], rows)


def cuda_batch_table(results):
    """What a batch costs beside the time that its bytes need."""
    rows = []
    files = [(card, results.load(f"cuda-step-batch-{name}bf16", "sm90")) for card, name in (("", ""), (", H200", "h200-"))]
    for card, (batch, depth, arm), row in ((card, *each) for card, file in files for each in steps_of(file).items()):
        rows.append([f"{depth // 1024}K x {batch}{card}", re.sub(r"(\d)%", r"\1 %", arm.replace(":", ", ")), f"{row['ms']:.2f}",
                     f"{row['kv_bytes'] / 1e9:.2f}", f"{row['of_read']:.2f}", f"{1000 * batch / row['ms']:.0f}"])
    return table(["tokens x sequences", "method", "ms a step", "GB of K and V", "of read bandwidth", "tokens/s"], rows)


def cuda_lossless_table(results):
    """Drafts and verifications beside dense steps."""
    rows = []
    files = [results.load(name, "sm90") for name in ("cuda-lossless-q4k", "cuda-lossless-long-q4k")]
    for file, (batch, depth, arm), row in ((file, *each) for file in files for each in steps_of(file, "lossless").items()):
        card = ", H200" if "H200" in json.dumps(file["machine"]) else ""
        rows.append([f"{depth // 1024}K x {batch}{card}", re.sub(r"(\d)%", r"\1 %", arm.replace(":", ", ")), f"{row['dense_ms']:.2f}",
                     f"{row['draft_ms']:.2f}", f"{row['verify_ms']:.2f}", f"{row['verify_ms'] / row['dense_ms']:.2f}",
                     f"{row['ms']:.2f}", f"{row['dense_ms'] / row['ms']:.2f}"])
    return table(["tokens x sequences", "method", "a dense step, ms", "a draft", "a verification", "of a dense step", "a token of each",
                  "x dense"], rows)


def cuda_bytes_table(results):
    """A layer's attention over a cache of bytes beside one of bf16."""
    cells = {(row["cache"], row["batch"], row["tokens"], row["what"]): row for row in results.load("cuda-bytes", "sm90")["rows"]}
    names = {"dense": "dense", "gathered": "10 % of the tokens", "gathered blocks of 16": "10 %, blocks of 16",
             "anchor": "score, select 10 %, attend"}
    rows = []
    for (cache, batch, tokens, what), row in cells.items():
        if cache == "q8_0" and what in names:
            wide = cells["bf16", batch, tokens, what]
            rows.append([f"{tokens // 1024}K x {batch}", names[what], f"{row['us']:.1f}", f"{wide['us']:.1f}",
                         f"{wide['us'] / row['us']:.2f}", f"{row['of_read']:.2f}"])
    return table(["tokens x sequences", "heads read", "us a layer", "bf16", "x bf16", "of read bandwidth"], rows)


def cuda_step_bytes_table(results):
    rows = []
    for name in ("cuda-step-bytes-q4k", "cuda-step-bytes-batch-q4k"):
        cells = {(row["cache"], row["batch"], row["depth"], row["arm"]): row for row in results.load(name, "sm90")["rows"]
                 if row["what"] == "step"}
        for (cache, batch, depth, arm), row in cells.items():
            if cache != "q8_0":
                continue
            wide, dense = cells["bf16", batch, depth, arm], cells["bf16", batch, depth, "full"]
            rows.append([f"{depth // 1024}K x {batch}", re.sub(r"(\d)%", r"\1 %", arm.replace(":", ", ")), f"{row['ms']:.2f}",
                         f"{wide['ms']:.2f}", f"{wide['ms'] / row['ms']:.2f}", f"{dense['ms'] / row['ms']:.2f}"])
    return table(["tokens x sequences", "method", "ms a step", "bf16", "x bf16", "x dense in bf16"], rows)


WEIGHTS = ("q4k", "q6k", "q80", "bf16")


def cuda_weights_table(results):
    rows = []
    for name in WEIGHTS:
        file = results.load(f"cuda-weights-{name}", "sm90")
        beside = steps_of(file, "llama.cpp")
        for (batch, depth, _), row in steps_of(file).items():
            llama = beside[batch, depth, None]["ms"]
            rows.append([file["settings"]["weights"], str(batch), f"{row['ms']:.2f}", f"{row['of_read']:.2f}",
                         f"{1000 * batch / row['ms']:.0f}", f"{llama:.2f}", f"{llama / row['ms']:.2f}"])
    return table(["weights", "sequences", "ms a step", "of read bandwidth", "tokens/s", "llama.cpp, ms", "x llama.cpp"], rows)


def cuda_prompts_table(results):
    rows = []
    for name in WEIGHTS:
        file = results.load(f"cuda-weights-{name}", "sm90")
        ours = max((row for row in file["rows"] if row["what"] == "prefill"), key=lambda row: row["tokens"])
        theirs = steps_of(file, "llama.cpp")[ours["batch"], ours["depth"], None]
        rows.append([file["settings"]["weights"], f"{ours['batch']} x {ours['depth']:,}", f"{ours['tokens'] / ours['s']:,.0f}",
                     f"{ours['tokens'] / theirs['prefill_s']:,.0f}", f"{theirs['prefill_s'] / ours['s']:.2f}"])
    return table(["weights", "prompts x tokens", "tokens/s", "llama.cpp, tokens/s", "x llama.cpp"], rows)


def cuda_products_table(results):
    file = results.load("cuda-products", "sm90")
    cells = {(row["type"], row["rows"], row["what"]): row for row in file["rows"]}
    rows = []
    for type_, count in dict.fromkeys((row["type"], row["rows"]) for row in file["rows"]):
        inside = "layer, norms inside"
        whole = inside if (type_, count, inside) in cells else "layer, norms between"
        rows.append([type_, str(count)] + [f"{cells[type_, count, what]['us']:.1f} ({cells[type_, count, what]['share']:.2f})"
                                           for what in ("output", "gate and up", "down", "q, k, v", whole)])
    return table(["weights", "rows", "output", "gate and up", "down", "q, k, v", "all with norms"], rows)


def board_table(page, cell):
    """Of a scoreboard's page, by method and budget; a method without one has the same in each column."""
    cells = board_tables.cells_of(page)
    names = by_order({name for name, _ in cells})
    return table(board_tables.head(), [[name] + [cell(cells.get((name, budget)) or cells[name, ""])
                                                 for budget in board_tables.BUDGETS] for name in names])


def serve_table(results):
    rows = []
    for row in results.load("serve")["rows"]:
        cells = [f"{row[key]:.4g} {row['unit']}" if key in row else "" for key in ("server", "beside")]
        ratio = f"{row['ratio']:.3g} ({row['least']:.3g} to {row['most']:.3g})" if "ratio" in row else ""
        rows.append([row["what"], row["method"], f"{row['tokens']:,}", *cells, ratio, row["wanted"]])
    return table(["what", "method", "tokens", "server", "beside it", "ratio (least to most)", "wanted"], rows)


TABLES = {"methods": methods_table,
          "methods-avx2": lambda results: methods_table(results, (("methods-8k", 8192),), "avx2"),
          "small": small_table, "prefill": prefill_table, "needles": needles_table,
          "answers": answers_table, "calibrated": calibrated_table, "fidelity": fidelity_table, "lossless": lossless_table, "layers": layers_table,
          "kernels": kernels_table, "cuda": cuda_table, "cuda-prefill": cuda_prefill_table, "cuda-step": cuda_step_table, "cuda-index": cuda_index_table,
          "cuda-bytes": cuda_bytes_table, "cuda-step-bytes": cuda_step_bytes_table, "cuda-batch": cuda_batch_table, "cuda-lossless": cuda_lossless_table,
          "cuda-weights": cuda_weights_table, "cuda-prompts": cuda_prompts_table, "cuda-products": cuda_products_table, "serve": serve_table,
          "scoreboard": lambda _: board_table(SCOREBOARD, board_tables.answers_cell),
          "scoreboard-embedded": lambda _: board_table(EMBEDDED, board_tables.divergence_cell)}
# What makes a table's files where scripts/measure does not.
MADE_BY = {"cuda": "`cuda_attention_bench --json FILE` and `bench/competitors/torch_sdpa.py --add FILE`, one after the "
                   "other on the same GPU, and `bench/competitors/flashinfer_paged.py --add FILE` on another H100",
           "cuda-prefill": "`cuda_attention_bench --batch 1 --tokens 8192,32768,131072 --only prefill --prefill 64,2048 "
                           "--json FILE` and `bench/competitors/torch_sdpa.py --tokens 8192,32768,131072 --prefill 64,2048 "
                           "--add FILE`, one after the other on the same GPU",
           "calibrated": "`glimpse calibrate -m MODEL --device cuda -c 8192` and the command in each file",
           "cuda-lossless": "the commands in the files",
           "cuda-prompts": "the same runs",
           "scoreboard": "the command that [scoreboard.html](scoreboard.html) names",
           "scoreboard-embedded": "the command that [scoreboard-embedded.html](scoreboard-embedded.html) names",
           "cuda-step": "`cuda_step_bench --weights q4_k --batch 1,8 --llama PROGRAM --json FILE`",
           "cuda-index": "the command in the file",
           "cuda-bytes": "the command in the file",
           "cuda-batch": "the commands in the files",
           "cuda-step-bytes": "the commands in the files",
           "cuda-products": "`cuda_product_bench --json FILE`",
           "cuda-weights": "`cuda_step_bench --weights TYPE --batch 1,4,16 --depth 1024 --arms full --llama PROGRAM --json FILE`"}


def block_of(name):
    results = Results()
    text = TABLES[name](results)
    names = dict.fromkeys(path.name[:-len(".json")].removesuffix("-" + ISA).removesuffix("-avx512").removesuffix("-avx2")
                          for path in results.used)
    files = [f"[{path.name.removesuffix('.json')}](../bench/results/{path.name}), commit "
             f"{json.loads(path.read_text())['commit']}" for path in results.used]
    made_by = MADE_BY.get(name, f"`scripts/measure {' '.join(names)}`")
    if any(name.startswith("retrieval-") for name in names):
        made_by = ("the command in each file, at the file's commit; `scripts/measure answers-8k answers-16k answers-30k` "
                   "asks the same with `glimpse eval scoreboard`")
    return f"{text}\n\nMade by {made_by}." + (f" Results: {'; '.join(files)}." if files else "")


def page_of(text):
    def replaced(match):
        if match[1] not in TABLES:
            sys.exit(f"error: {PAGE.relative_to(ROOT)} asks for a table '{match[1]}'; there are {', '.join(TABLES)}")
        return f"<!-- table {match[1]} -->\n{block_of(match[1])}\n<!-- /table -->"
    return re.sub(r"<!-- table (\S+) -->\n.*?<!-- /table -->", replaced, text, flags=re.S)


def methods_picture():
    """Speed and answers of each method at 30K tokens, where both were measured under one plan."""
    results = Results()
    answers = found_by(results, ("single", "multikey"), "30k")
    kept = {(row["method"], row["budget"]): row["kept_ratio"] for row in answer_rows(results, "30k")
            if row.get("task") == "single"}
    asked = max(count for _, count in answers.values())
    made = []
    for row in speeds(results, "methods-30k"):
        if row["method"] == "llama.cpp":
            continue
        budget = "" if row["budget"] in ("", "512") else ", " + row["budget"].replace("%", " %")
        # A speed by relative depth stands for the method with the layers that retrieve, where both read as much.
        same = [key for key in answers if base(key[0]) == base(row["method"]) and key[1] == row["budget"] and
                answers[key][1] == asked and math.isclose(kept[key], row["kept_ratio"], abs_tol=0.02)]
        exact = [key for key in same if key[0] == row["method"]]
        for key in exact or same[:1]:
            right, count = answers[key]
            name = base(key[0])
            kind = "dense" if name == "full" else "paper" if name in PAPERS else "other"
            told = {"full": "full (dense)", "oracle": "oracle (a bound)"}.get(name, name)
            made.append({"label": told + budget, "kind": kind, "speed": row["over_llama"],
                         "found": 100 * right / count})
    llama = next(row for row in speeds(results, "methods-30k") if row["method"] == "llama.cpp")
    file = results.load("methods-30k")
    notes = (f"One token behind {llama['tokens']:,} tokens, by method; each reads 512 of them for each head and step "
             "unless it says otherwise.",
             f"SmolLM2-135M fine-tuned to 32K tokens, {file['settings']['threads']} threads of an "
             f"{file['machine']['cpu']} ({file['machine']['isa']}).")
    return picture_of(made, "How fast, and how often right, at 30,000 tokens", notes,
                      f"speed of decoding, llama.cpp = 1x ({llama['median_ms']:.0f} ms a token)",
                      f"hidden numbers found, of {asked} prompts")


def main():
    parser = one_line.Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where something is out of date")
    arguments = parser.parse_args()
    stale = False
    for path, text in ((PAGE, page_of(PAGE.read_text())), (PICTURE, methods_picture())):
        if path.exists() and path.read_text() == text:
            continue
        if arguments.check:
            print(f"{path.relative_to(ROOT)} is not what bench/results says; run scripts/make-tables.py")
            stale = True
        else:
            path.write_text(text)
            print(f"{path.relative_to(ROOT)} is written")
    sys.exit(stale)


if __name__ == "__main__":
    one_line.run(main)
