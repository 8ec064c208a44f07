"""NVIDIA's aiperf, as it is: it drives streams and single answers and counts their tokens."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from support import KEY, MODEL, URL

PYTHON = pathlib.Path(os.environ["GLIMPSE_CLIENTS_AIPERF"])  # of aiperf's own environment
TOKENIZER = pathlib.Path(__file__).parent / "aiperf" / "make_tokenizer.py"
REQUESTS, TOKENS = 4, 12


def profile(folder, *flags):
    """What aiperf exports of a run in which every answer has TOKENS tokens."""
    tokenizer, out = folder / "tokenizer", folder / "out"
    subprocess.run([PYTHON, TOKENIZER, tokenizer], check=True, capture_output=True)
    command = [PYTHON.parent / "aiperf", "profile", "--model", MODEL, "--url", URL, "--api-key", KEY, "--ui", "none",
               "--tokenizer", tokenizer, "--use-server-token-count", "--concurrency", "2", "--request-count", REQUESTS,
               "--synthetic-input-tokens-mean", "600", "--output-tokens-mean", TOKENS, "--extra-inputs", "ignore_eos:true",
               "--output-artifact-dir", out, *flags]
    # A folder is a tokenizer to it only while no other test's variables say that the hub is out of reach.
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
    environment["HF_HOME"] = str(folder / "hub")
    run = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    records = [json.loads(line) for line in (out / "profile_export.jsonl").read_text().splitlines()]
    return records, json.loads((out / "profile_export_aiperf.json").read_text())


class Aiperf(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def check(self, records, summary):
        self.assertEqual(len(records), REQUESTS)
        for record in records:
            self.assertIsNone(record.get("error"))
            self.assertEqual(record["metrics"]["usage_completion_tokens"]["value"], TOKENS)
            self.assertGreater(record["metrics"]["usage_prompt_tokens"]["value"], 64)
        self.assertEqual(summary["request_count"]["avg"], REQUESTS)
        self.assertNotIn("error_request_count", summary)

    def test_streams_of_chats(self):
        records, summary = profile(pathlib.Path(self.folder.name), "--endpoint-type", "chat", "--streaming")
        self.check(records, summary)
        for record in records:
            metrics = record["metrics"]
            self.assertLessEqual(metrics["time_to_first_token"]["value"], metrics["request_latency"]["value"])
            self.assertGreater(metrics["inter_token_latency"]["value"], 0)

    def test_completions_by_a_method(self):
        method = json.dumps({"attention": {"policy": "quest", "budget": 64}})
        records, summary = profile(pathlib.Path(self.folder.name), "--endpoint-type", "completions", "--extra-inputs", method)
        self.check(records, summary)


if __name__ == "__main__":
    unittest.main()
