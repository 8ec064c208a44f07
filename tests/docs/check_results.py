"""Holds bench/results to one schema (bench/README.md), to its size, to the history, and docs/benchmarks.md to the files.

    python3 tests/docs/check_results.py ROOT [--file FILE]

With --file only the schema of that file is checked, as for what a program has just written.
"""
import argparse
import copy
import json
import pathlib
import re
import subprocess
import sys

MOST_BYTES, MOST_BYTES_TOGETHER = 64 * 1024, 400 * 1000
MOST_PICTURE_BYTES = 40 * 1000
HEAD = {"schema": int, "benchmark": str, "commit": str, "date": (str, type(None)), "machine": dict, "command": str,
        "model": (str, type(None)), "settings": dict, "rows": list}
MACHINE = {"cpu": str, "isa": str, "cores": int, "memory": (int, type(None)), "read_bandwidth": (int, type(None))}


def isa_name(isa):
    return isa.lower().replace("-", "").replace(" + ", "-")


def fields(what, found, wanted):
    if list(found) != list(wanted):
        yield f"{what} has the fields {', '.join(found)}; they are {', '.join(wanted)}"
    for key, kinds in wanted.items():
        if key in found and (not isinstance(found[key], kinds) or isinstance(found[key], bool)):
            yield f"{what}: {key} is {json.dumps(found[key])[:60]}"


def flat(what, found):
    if not isinstance(found, dict) or any(isinstance(value, (dict, list)) for value in found.values()):
        yield f"{what} is not flat"


def with_objects(file):
    """The file with rows that are objects: of a scoreboard `columns` names the values of each row."""
    if "columns" not in file:
        return file
    columns = file["columns"]
    rows = [dict(zip(columns, row)) if isinstance(row, list) and len(row) == len(columns) else row
            for row in file["rows"]]
    return {key: rows if key == "rows" else value for key, value in file.items() if key != "columns"}


def schema_problems(file):
    """What is wrong with a file of results, whatever its name and history."""
    if not isinstance(file, dict):
        yield "is no object"
        return
    file = with_objects(file)
    wrong = list(fields("the head", file, HEAD))
    yield from wrong
    if wrong:
        return
    if file["schema"] != 1:
        yield f"schema {file['schema']} is not 1"
    yield from fields("machine", file["machine"], MACHINE)
    if file["date"] is not None and not re.fullmatch(r"20\d\d-\d\d-\d\d", file["date"]):
        yield f"date {file['date']} is no date"
    if file["command"].split(" ")[0] != file["benchmark"]:
        yield f"{file['benchmark']} was not run by '{file['command'][:60]}'"
    if "/" in re.sub(r"[\w-]+(/[\w-]+=[^/,\s]*)+", "", file["command"]):
        yield f"the command names a folder: {file['command']}"
    yield from flat("settings", file["settings"])
    if not file["rows"]:
        yield "has no rows"
    for number, row in enumerate(file["rows"]):
        yield from flat(f"row {number}", row)
        if isinstance(row, dict) and "text" in row:
            yield f"row {number} holds an answer"


def git(root, *words):
    return subprocess.run(["git", "-C", str(root), *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def has_history(root):
    """False in an archive of the sources, and in a clone that is cut off."""
    return git(root, "rev-parse", "--is-shallow-repository").stdout.strip() == "false"


def is_in_history(root, commit):
    return git(root, "merge-base", "--is-ancestor", commit, "HEAD").returncode == 0


def place_problems(root, path, file, history):
    """What is wrong with a file for where it lies: its name, commit and program."""
    if not path.stem.endswith("-" + isa_name(file["machine"]["isa"])):
        yield f"its name does not end with {isa_name(file['machine']['isa'])}"
    program = f"bench/{file['benchmark']}" + ("" if file["benchmark"].endswith(".py") else ".cc")
    if file["benchmark"] != "glimpse" and not (root / program).exists() and history:
        if git(root, "cat-file", "-e", f"{file['commit']}:{program}").returncode:
            yield f"there is no program {file['benchmark']}, and commit {file['commit']} had none"
    for commit in [file["commit"], *str(file["settings"].get("commits", "")).split()]:
        if not re.fullmatch(r"[0-9a-f]{7,40}", commit):
            yield f"'{commit}' is no commit of a clean tree"
        elif history and not is_in_history(root, commit):
            yield f"commit {commit} is not in the history"


def put_in_row(file, name, value):
    if "columns" in file:
        file["columns"].append(name)
        file["rows"][0].append(value)
    else:
        file["rows"][0][name] = value


def check_the_checks(root, file, path, history):
    """Each of these makes a good file bad, and must be found."""
    def bad(change):
        changed = copy.deepcopy(file)
        change(changed)
        return list(schema_problems(changed)) or list(place_problems(root, path, changed, history))
    changes = [lambda f: f.pop("date"), lambda f: f.update(schema=2), lambda f: f.update(benchmark="retrieval_bench2"),
               lambda f: f.update(commit=f["commit"] + "-dirty"), lambda f: put_in_row(f, "answers", [1]),
               lambda f: put_in_row(f, "text", "an answer"), lambda f: f["machine"].pop("isa"),
               lambda f: f["machine"].update(isa="AVX9"), lambda f: f.update(rows=[]), lambda f: f.update(cpu="on top"),
               lambda f: f["settings"].update(machine={}), lambda f: f.update(command=f["command"] + " /tmp/x")]
    if history:
        changes += [lambda f: f.update(commit="0123456789"),
                    lambda f: f.update(command="x" + f["command"], benchmark="x" + f["benchmark"])]
    return [f"the check overlooks bad file {number}" for number, change in enumerate(changes) if not bad(change)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--file", type=pathlib.Path)
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    complaints = []
    if arguments.file:
        complaints = list(schema_problems(json.loads(arguments.file.read_text())))
    else:
        paths = sorted((root / "bench/results").iterdir())
        history = has_history(root)
        for path in paths:
            size = path.stat().st_size
            if size > MOST_BYTES:
                complaints.append(f"{path.name} has {size} bytes, more than {MOST_BYTES}")
            file = json.loads(path.read_text())
            wrong = list(schema_problems(file)) or list(place_problems(root, path, file, history))
            complaints += [f"{path.name}: {what}" for what in wrong]
            if not wrong:
                complaints += check_the_checks(root, file, path, history)
        together = sum(path.stat().st_size for path in paths)
        if together > MOST_BYTES_TOGETHER:
            complaints.append(f"bench/results has {together} bytes, more than {MOST_BYTES_TOGETHER}")
        for picture in (root / "docs/images").glob("*.svg"):
            if picture.stat().st_size > MOST_PICTURE_BYTES:
                complaints.append(f"{picture.name} has more than {MOST_PICTURE_BYTES} bytes")
        tables = subprocess.run([sys.executable, str(root / "scripts/make-tables.py"), "--check"],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if tables.returncode:
            complaints.append(tables.stdout.strip())
    print("\n".join(complaints) or "the results fit their schema")
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
