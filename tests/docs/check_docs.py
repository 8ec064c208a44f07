"""Holds the documents to the tree and the program: links, paths, symbols, make targets and command lines.

    python3 tests/docs/check_docs.py ROOT [--program GLIMPSE --model MODEL.gguf]

Without a program only what can be read in the tree is checked. With one, each `glimpse` command in a ```sh block may
only use flags that its help knows, and the blocks marked ```sh test run in a folder with a small model.gguf and document.txt.
"""
import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

FOLDERS = "glimpse|scripts|tests|docs|cmake|third_party|bench"


def documents(root):
    return [path for path in [root / "README.md", root / "CONTRIBUTING.md", root / "bench/README.md", *sorted((root / "docs").rglob("*.md"))]]


def blocks(text):
    """(info, body, first line number) of fenced blocks."""
    for match in re.finditer(r"^```([^\n]*)\n(.*?)^```", text, re.M | re.S):
        yield match[1].strip(), match[2], text[:match.start()].count("\n") + 2


def commands(body):
    """Command lines of a block: continuations joined, comments dropped, cut into their parts at pipes and the like."""
    for line in re.sub(r"\\\n\s*", " ", body).splitlines():
        part = []
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
        lexer.whitespace_split = True
        for word in lexer:
            if word and set(word) <= set("|;&"):
                yield part
                part = []
            else:
                part.append(word)
        if part:
            yield part


def check_tree(root, path, text, words, complain):
    plain = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", plain):
        if not re.match(r"[a-z]+:|#", target) and not (path.parent / target.split("#")[0]).exists():
            complain(f"link to {target}: no such file")
    for code in re.findall(r"`([^`\n]+)`", plain):
        if re.fullmatch(rf"({FOLDERS})/[\w./-]+", code) and not (root / code).exists():
            complain(f"`{code}`: no such file or folder")
        if re.fullmatch(r"\w+(::\w+)+", code):
            for word in code.split("::"):
                if word not in words:
                    complain(f"`{code}`: '{word}' is nowhere in the sources")


def check_layout(root, text, complain):
    """Rows of the layout table against the folders' CMakeLists.txt: | `glimpse/kv` | what | base, kernels | ... |"""
    rows = dict(re.findall(r"^\| `glimpse/(\w+)` \|[^|]*\| ([^|]*) \|", text, re.M))
    for listed in sorted(root.glob("glimpse/*/CMakeLists.txt")):
        folder = listed.parent.name
        depends = re.search(r"DEPENDS\s+([\w\s]+?)(?=LIBRARIES|\)|#)", listed.read_text())
        used = set(depends[1].split()) if depends else set()
        if folder not in rows:
            complain(f"glimpse/{folder} has no row in the layout table")
        elif not re.search(r"\ball\b|below", rows[folder]):
            allowed = set(re.findall(r"\w+", rows[folder]))
            if used - allowed:
                complain(f"glimpse/{folder} uses {', '.join(sorted(used - allowed))}; its row names {rows[folder]}")


def check_commands(root, program, text, complain):
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.M))
    helps = {}
    for info, body, _ in blocks(text):
        if info.split()[:1] != ["sh"]:
            continue
        for command in commands(body):
            if not command:
                continue
            name = command[0]
            if name == "make":
                for word in command[1:]:
                    if "=" not in word and word not in targets:
                        complain(f"make {word}: no such target")
            elif name.startswith("scripts/") and not os.access(root / name, os.X_OK):
                complain(f"{name}: no such script")
            elif name.endswith("glimpse") and program:
                words = []
                for word in command[1:]:
                    if word.startswith("-") or len(words) == 2:
                        break
                    words.append(word)
                while words:  # `eval logits` is a command of its own, `inspect FILE` is not
                    key = tuple(words)
                    if key not in helps:
                        done = subprocess.run([program, *words, "--help"], capture_output=True, text=True)
                        helps[key] = done.stdout + done.stderr if done.returncode == 0 else None
                    if helps[key]:
                        break
                    words.pop()
                if not words:
                    complain(f"glimpse {' '.join(command[1:])}: no such command")
                    continue
                for flag in command[1:]:
                    if re.match(r"--?[A-Za-z]", flag):
                        flag = flag.split("=")[0]
                        if not re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", helps[tuple(words)]):
                            complain(f"glimpse {' '.join(words)}: its help has no {flag}")


def run_blocks(program, model, text, complain):
    environment = dict(os.environ, PATH=f"{program.resolve().parent}{os.pathsep}{os.environ['PATH']}")
    for info, body, line in blocks(text):
        if info.split() != ["sh", "test"]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "model.gguf").symlink_to(model.resolve())
            (pathlib.Path(folder) / "document.txt").write_text("The road leads into the forest. What leads there?\n")
            done = subprocess.run(["bash", "-eu", "-c", body], cwd=folder, env=environment, text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            complain(f"the block at line {line} exits with {done.returncode}:\n{body}{done.stdout[-2000:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--program", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path)
    arguments = parser.parse_args()
    sources = [path for kind in ("*.h", "*.cc") for path in (arguments.root / "glimpse").rglob(kind)]
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in sources)))
    complaints = []
    for path in documents(arguments.root):
        text = path.read_text()
        def complain(what, path=path):
            complaints.append(f"{path.relative_to(arguments.root)}: {what}")
        check_tree(arguments.root, path, text, words, complain)
        if path.name == "architecture.md":
            check_layout(arguments.root, text, complain)
        check_commands(arguments.root, arguments.program, text, complain)
        if arguments.program and arguments.model:
            run_blocks(arguments.program, arguments.model, text, complain)
    print("\n".join(complaints) or "the documents agree with the tree")
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
