#!/usr/bin/env python3
"""What `glimpse serve` costs beside its Engine by hand, and how it compares with llama.cpp's llama-server.

    bench/serve_bench.py MODEL.gguf BOOK.txt [--only token,eight,...] [--rounds 5] [--document 8192] [--threads N]
                         [--json FILE]

MODEL.gguf works at the document's tokens and 1,024 more, BOOK.txt has at least 60,000. The programs are
build/release/glimpse and hand_loop, and what scripts/build-llama-server builds. All three processes are there during
the whole run and take turns; a round has each arm once, and a ratio is the median of the rounds' ratios. Greedy
answers are compared before anything is timed.
"""
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import one_line  # noqa: E402
import serve_cases  # noqa: E402
from serve_streams import Failed, Hand, Server  # noqa: E402

SLOTS, ROOM = 8, 1024  # tokens of a sequence behind its document
LLAMA_SLOTS = 4


class Bench:
    """The three processes, the tokens of the book, and the rows that were measured."""

    def __init__(self, arguments, folder):
        self.rounds, self.rows, self.servers, self.hand = arguments.rounds, [], [], None
        try:
            self.begin(arguments, folder)
        except BaseException:
            self.stop()
            raise

    def begin(self, arguments, folder):
        self.document, context = arguments.document, max(arguments.document, 4608) + ROOM
        program = ROOT / "build/release/glimpse"
        threads = [] if arguments.threads is None else ["--threads", str(arguments.threads)]
        self.hand = Hand([ROOT / "build/release/hand_loop", arguments.model, "--context", context, "--sequences", SLOTS,
                          *threads])
        self.head = self.hand.head
        self.threads = self.head["settings"]["threads"]
        self.glimpse = self.start("glimpse", [program, "serve", "-m", arguments.model, "-c", context, "--parallel",
                                              SLOTS, "-t", self.threads], folder)
        self.llama = None
        if any(case in serve_cases.AGAINST_LLAMA for case in arguments.only):
            llama = subprocess.run([ROOT / "scripts/build-llama-server"], check=True, stdout=subprocess.PIPE,
                                   text=True).stdout.strip()
            self.llama = self.start("llama-server", [
                llama, "-m", arguments.model, "-c", context * LLAMA_SLOTS, "-np", LLAMA_SLOTS, "-no-kvu", "-t",
                self.threads, "-fa", "on", "-cram", 0, "-ctxcp", 0], folder)
        text, self.book = arguments.text.read_text(), arguments.text.name
        self.tokens = self.glimpse.json("/tokenize", {"content": text})["tokens"]
        if len(self.tokens) < serve_cases.BOOK_TOKENS:
            one_line.fail(f"'{arguments.text}' has {len(self.tokens)} tokens; give a text of at least "
                          f"{serve_cases.BOOK_TOKENS}")

    def start(self, name, command, folder):
        server = Server(name, [str(word) for word in command], folder)
        self.servers.append(server)
        server.wait()
        return server

    def stop(self):
        for server in self.servers:
            server.stop()
        if self.hand is not None:
            self.hand.stop()

    def piece(self, number, length):
        """A part of the book: those of different numbers have no beginning in common."""
        first = number * serve_cases.PIECE_STEP
        return self.tokens[first:first + length]

    def compare(self, row, ours, beside):
        """Adds a row: the ratio of the server's numbers to those beside them, round by round."""
        ratios = [a / b for a, b in zip(ours, beside)]
        ratio = statistics.median(ratios)
        self.put({**row.head(), "server": statistics.median(ours), "beside": statistics.median(beside),
                  "unit": row.unit, "ratio": ratio, "least": min(ratios), "most": max(ratios), **row.judged(ratio)})

    def note(self, row, value):
        """Adds a row: one number."""
        self.put({**row.head(), "server": value, "unit": row.unit, **row.judged(value)})

    def put(self, row):
        self.rows.append(row)
        print(", ".join(f"{key} {each:.4g}" if isinstance(each, float) else f"{key} {each}"
                        for key, each in row.items()), flush=True)


def command_of(words):
    """As a file of results has it: paths cut to file names."""
    return " ".join(pathlib.Path(word).name if "/" in word else word for word in words)


def results_of(bench):
    """The text of a file of results (bench/README.md), a line for each field and each row."""
    def text(value):
        if isinstance(value, dict):
            value = {key: float(f"{each:.6g}") if isinstance(each, float) else each for key, each in value.items()}
        return json.dumps(value)
    head = {**bench.head, "benchmark": "serve_bench.py", "command": command_of(sys.argv)}
    head["settings"] = {**head["settings"], "rounds": bench.rounds, "text": bench.book}
    lines = [f' "{key}": {text(value)},' for key, value in head.items() if key != "rows"]
    rows = ",\n".join("  " + text(row) for row in bench.rows)
    return "{\n" + "\n".join(lines) + f'\n "rows": [\n{rows}\n ]\n}}\n'


def main():
    parser = one_line.Parser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path, help="a GGUF file")
    parser.add_argument("text", type=pathlib.Path, help="a UTF-8 novel")
    parser.add_argument("--only", default=",".join(serve_cases.CASES), help="cases by commas (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="of each comparison (default: 5)")
    parser.add_argument("--document", type=int, default=8192, help="tokens of a long prompt (default: 8192)")
    parser.add_argument("--threads", type=int, help="of each process; default: one for each core")
    parser.add_argument("--json", type=pathlib.Path, help="the results")
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    for name in arguments.only:
        if name not in serve_cases.CASES:
            one_line.fail(f"no case '{name}'; there are {', '.join(serve_cases.CASES)}")
    if arguments.rounds < 1:
        one_line.fail(f"--rounds {arguments.rounds}; give 1 or more")
    if not 1024 <= arguments.document <= 16384:
        one_line.fail(f"--document {arguments.document}; give 1024 to 16384")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers end with this program
    try:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(arguments, folder)
            try:
                for name in arguments.only:
                    start = time.monotonic()
                    serve_cases.CASES[name](bench)
                    print(f"({name}: {time.monotonic() - start:.0f} s)", file=sys.stderr, flush=True)
            finally:
                bench.stop()
    except Failed as error:
        one_line.fail(error)
    if arguments.json is not None:
        arguments.json.write_text(results_of(bench))


if __name__ == "__main__":
    one_line.run(main)
