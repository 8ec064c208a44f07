"""lm_eval's local-completions, as it is: its remote tokenizer, a task of a local JSON file, likelihoods."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

FOLDER = tempfile.TemporaryDirectory()
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=FOLDER.name)

import lm_eval
import numpy
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

from support import FILE, KEY, MODEL, PROGRAM, URL, document

TEXTS = [("One, two, three, four,", " five, six, seven"), ("The ship carried", " coal"),
         (document(), "\nOn day 31 the ship carried salt")]
QUESTIONS = [{"question": "One, two, three,", "choices": [" four", " purple"], "answer": 0},
             {"question": "Monday, Tuesday, Wednesday,", "choices": [" river", " Thursday"], "answer": 1}]


def client(**fields):
    return LocalCompletionsAPI(base_url=URL + "/v1/completions", model=MODEL, auth_token=KEY, max_length=4096, max_retries=1,
                               header={"Authorization": f"Bearer {KEY}"}, **fields)


def likelihood(text, count):
    """Log-probability of a text's tokens after the first `count`, and whether each is the likeliest, by the logits of
    the program without a server."""
    source, out = pathlib.Path(FOLDER.name) / "text", pathlib.Path(FOLDER.name) / "logits.npy"
    source.write_text(text)
    subprocess.run([PROGRAM, "eval", "logits", "-m", FILE, "-q", "-f", source, "-o", out], check=True)
    tokens = client().tok_encode(text)
    logits = numpy.load(out).astype(numpy.float64)
    assert len(logits) == len(tokens), (len(logits), len(tokens))
    logits -= logits.max(axis=1, keepdims=True)
    logprobs = logits - numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))
    rest = range(count, len(tokens))
    return sum(logprobs[i - 1, tokens[i]] for i in rest), all(logprobs[i - 1].argmax() == tokens[i] for i in rest)


class LmEval(unittest.TestCase):
    def test_remote_tokenizer(self):
        model = client()
        self.assertEqual(model.tokenizer_backend, "remote")
        tokens = model.tok_encode(TEXTS[0][0])
        self.assertEqual(model.tokenizer.decode(tokens), TEXTS[0][0])
        self.assertEqual(model.tokenizer.decode([model.eot_token_id]), model.eos_string)

    def test_likelihoods(self):
        requests = [Instance(request_type="loglikelihood", doc={}, arguments=texts, idx=0) for texts in TEXTS]
        for batch in (1, 3):
            model = client(batch_size=batch)
            for (context, rest), (value, greedy) in zip(TEXTS, model.loglikelihood(requests, disable_tqdm=True)):
                with self.subTest(rest, batch=batch):
                    expected, likeliest = likelihood(context + rest, len(model.tok_encode(context)))
                    self.assertAlmostEqual(value, expected, delta=1e-4)
                    self.assertEqual(greedy, likeliest)

    def test_task(self):
        file = pathlib.Path(FOLDER.name) / "questions.json"
        file.write_text("\n".join(json.dumps(question) for question in QUESTIONS))
        task = {"task": "questions", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(file)}},
                "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "question",
                "doc_to_choice": "choices", "doc_to_target": "answer", "target_delimiter": "",
                "metric_list": [{"metric": "acc"}]}
        results = lm_eval.simple_evaluate(model=client(), tasks=[task], bootstrap_iters=0)
        self.assertEqual(results["results"]["questions"]["acc,none"], 1)

    def test_generate(self):
        asked = ("One, two, three,", {"until": [","], "max_gen_toks": 8})
        request = Instance(request_type="generate_until", doc={}, arguments=asked, idx=0)
        self.assertEqual(client().generate_until([request], disable_tqdm=True), [" four"])
