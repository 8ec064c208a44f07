"""The openai package, as it is: its own types, exceptions and reading of streams."""
import math
import unittest

import openai

from support import KEY, METHODS, MODEL, QUESTION, URL, long_question


def client(key=KEY):
    return openai.OpenAI(base_url=URL + "/v1", api_key=key, max_retries=0, timeout=120)


def chat(messages=QUESTION, **fields):
    fields = {"model": MODEL, "temperature": 0, "max_tokens": 16, **fields}
    return client().chat.completions.create(messages=messages, **fields)


def complete(prompt, **fields):
    fields = {"model": MODEL, "temperature": 0, "max_tokens": 16, **fields}
    return client().completions.create(prompt=prompt, **fields)


class Models(unittest.TestCase):
    def test_list(self):
        models = client().models.list().data
        self.assertEqual([model.id for model in models], [MODEL])
        self.assertEqual(models[0].object, "model")
        self.assertEqual(models[0].max_model_len, 4096)

    def test_one(self):
        self.assertEqual(client().models.retrieve(MODEL), client().models.list().data[0])
        with self.assertRaises(openai.NotFoundError):
            client().models.retrieve("no-such-model")


class Chat(unittest.TestCase):
    def test_answer(self):
        answer = chat()
        self.assertEqual((answer.object, answer.model), ("chat.completion", MODEL))
        self.assertTrue(answer.id)
        choice = answer.choices[0]
        self.assertEqual((choice.index, choice.finish_reason, choice.message.role), (0, "length", "assistant"))
        self.assertIn("river", choice.message.content)
        self.assertIsNone(choice.message.tool_calls)
        self.assertEqual(answer.usage.completion_tokens, 16)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 16)

    def test_stream(self):
        alone = chat()
        chunks = list(chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(len({chunk.id for chunk in chunks}), 1)
        self.assertEqual({chunk.object for chunk in chunks}, {"chat.completion.chunk"})
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        *parts, last = chunks
        text = "".join(part.choices[0].delta.content or "" for part in parts)
        self.assertEqual(text, alone.choices[0].message.content)
        self.assertEqual([part.choices[0].finish_reason for part in parts if part.choices[0].finish_reason], ["length"])
        self.assertEqual(last.choices, [])
        self.assertEqual(last.usage, alone.usage)
        self.assertTrue(all(part.usage is None for part in parts))

    def test_stream_without_usage(self):
        for chunk in chat(stream=True, max_tokens=4):
            self.assertEqual(len(chunk.choices), 1)
            self.assertIsNone(chunk.usage)

    def test_stream_helper(self):
        """The client's own reader of streams, which rebuilds the whole answer."""
        alone = chat().choices[0].message.content
        word = alone.split()[5]  # it refuses an answer that ended by its length
        with client().chat.completions.stream(
                model=MODEL, messages=QUESTION, temperature=0, max_tokens=16, stop=word) as stream:
            text = "".join(event.delta for event in stream if event.type == "content.delta")
            answer = stream.get_final_completion()
        self.assertEqual(answer.choices[0].message.content, text)
        self.assertEqual(text, alone[:alone.index(word)])

    def test_leaving_a_stream(self):
        with chat(stream=True, max_tokens=2000) as stream:
            next(iter(stream))
        self.assertEqual(chat(max_tokens=2).usage.completion_tokens, 2)

    def test_content_parts(self):
        parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
        self.assertEqual(chat(parts).choices[0].message.content, chat().choices[0].message.content)

    def test_second_turn(self):
        """An answer goes back as the object that it was."""
        turn = chat().choices[0].message
        again = [*QUESTION, turn, {"role": "user", "content": "And a lake?"}]
        plain = [*QUESTION, {"role": "assistant", "content": turn.content}, again[-1]]
        self.assertEqual(chat(again).choices[0].message.content, chat(plain).choices[0].message.content)

    def test_fields_that_change_nothing(self):
        alone = chat().choices[0].message.content
        answer = chat(user="somebody", metadata={"a": "b"}, store=False, service_tier="auto", tool_choice="none", tools=[],
                      parallel_tool_calls=True, response_format={"type": "text"}, presence_penalty=0, stop=None)
        self.assertEqual(answer.choices[0].message.content, alone)
        self.assertLessEqual({"user", "metadata", "store", "service_tier"}, set(answer.model_extra["ignored"]))

    def test_request_id(self):
        self.assertTrue(chat(max_tokens=1)._request_id)
        self.assertEqual(chat(max_tokens=1, extra_headers={"x-request-id": "mine"})._request_id, "mine")

    def test_choices_in_a_stream(self):
        fields = {"n": 2, "temperature": 1, "seed": 3, "max_tokens": 8}
        texts = ["", ""]
        for part in chat(stream=True, **fields):
            texts[part.choices[0].index] += part.choices[0].delta.content or ""
        self.assertEqual(texts, [choice.message.content for choice in chat(**fields).choices])

    def test_max_completion_tokens(self):
        answer = client().chat.completions.create(model=MODEL, messages=QUESTION, max_completion_tokens=3)
        self.assertEqual(answer.usage.completion_tokens, 3)

    def test_stop(self):
        text = chat().choices[0].message.content
        word = text.split()[3]
        answer = chat(stop=[word, "never said"]).choices[0]
        self.assertEqual((answer.message.content, answer.finish_reason), (text[:text.index(word)], "stop"))

    def test_choices_and_seed(self):
        def texts(**fields):
            answer = chat(n=3, temperature=1, max_tokens=12, extra_body={"ignore_eos": True}, **fields)
            self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2])
            self.assertEqual(answer.usage.completion_tokens, 36)
            return [choice.message.content for choice in answer.choices]

        first = texts(seed=7)
        self.assertEqual(texts(seed=7), first)
        self.assertEqual(len(set(first)), 3)
        self.assertNotEqual(texts(seed=1000), first)

    def test_logit_bias(self):
        first = chat(logprobs=True, max_tokens=1).choices[0].logprobs.content[0].token
        number = client().post("/../tokenize", cast_to=object, body={"content": first})["tokens"]
        other = chat(logprobs=True, max_tokens=1, logit_bias={str(number[0]): -100}).choices[0].logprobs.content[0].token
        self.assertNotEqual(other, first)


class Logprobs(unittest.TestCase):
    def test_chat(self):
        choice = chat(logprobs=True, top_logprobs=5).choices[0]
        tokens = choice.logprobs.content
        self.assertEqual(len(tokens), 16)
        self.assertEqual(b"".join(bytes(token.bytes) for token in tokens).decode(), choice.message.content)
        for token in tokens:
            likeliest = [other.logprob for other in token.top_logprobs]
            self.assertEqual(likeliest, sorted(likeliest, reverse=True))
            self.assertEqual((token.top_logprobs[0].token, likeliest[0]), (token.token, token.logprob))
            self.assertLessEqual(sum(map(math.exp, likeliest)), 1 + 1e-4)

    def test_stream(self):
        whole = chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
        parts = chat(logprobs=True, top_logprobs=2, stream=True)
        lists = [part.choices[0].logprobs.content for part in parts if part.choices[0].logprobs]
        self.assertEqual([token for tokens in lists for token in tokens], whole)

    def test_both_endpoints_agree(self):
        tokens = chat(logprobs=True).choices[0].logprobs.content
        prompt = client().post("/../apply-template", cast_to=object, body={"messages": QUESTION})["prompt"]
        listed = complete(prompt, logprobs=1).choices[0].logprobs
        self.assertEqual(listed.tokens, [token.token for token in tokens])
        for old, new in zip(listed.token_logprobs, tokens):
            self.assertAlmostEqual(old, new.logprob, places=4)

    def test_echo(self):
        choice = complete("The river runs to the", echo=True, logprobs=0, max_tokens=4).choices[0]
        listed = choice.logprobs
        self.assertEqual("".join(listed.tokens), choice.text)
        self.assertIsNone(listed.token_logprobs[0])
        self.assertTrue(all(value <= 0 for value in listed.token_logprobs[1:]))
        for token, offset in zip(listed.tokens, listed.text_offset):
            self.assertEqual(choice.text[offset:offset + len(token)], token)


class Completions(unittest.TestCase):
    def test_prompts(self):
        alone = [complete(prompt).choices[0].text for prompt in ("One, two, three,", "The sea is")]
        both = complete(["One, two, three,", "The sea is"])
        self.assertEqual([choice.text for choice in both.choices], alone)
        self.assertIn("four", alone[0])

    def test_ids(self):
        tokens = client().post("/../tokenize", cast_to=object, body={"prompt": "The sea is"})["tokens"]
        self.assertEqual(complete(tokens).choices[0].text, complete("The sea is").choices[0].text)

    def test_stream(self):
        parts = list(complete("The sea is", stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(part.choices[0].text for part in parts[:-1]), complete("The sea is").choices[0].text)
        self.assertEqual((parts[-1].choices, parts[-1].usage.completion_tokens), ([], 16))


class Attention(unittest.TestCase):
    def test_each_method(self):
        for name, method in METHODS.items():
            with self.subTest(name):
                told = chat(long_question(), extra_body={"attention": method}).model_extra["glimpse"]
                self.assertEqual(told["policy"], name)
                if name == "full":
                    self.assertEqual(told["kept_ratio"], 1)
                else:
                    self.assertLess(told["kept_ratio"], 0.75)

    def test_in_a_stream(self):
        last = list(chat(stream=True, max_tokens=4, extra_body={"attention": METHODS["quest"]}))[-1]
        self.assertEqual(last.model_extra["glimpse"]["policy"], "quest")

    def test_lossless_is_dense(self):
        dense = chat(long_question(), max_tokens=24).choices[0].message.content
        drafted = chat(long_question(), max_tokens=24, extra_body={"attention": {**METHODS["tidal"], "lossless": True}})
        self.assertEqual(drafted.choices[0].message.content, dense)


TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}


class Errors(unittest.TestCase):
    def refused(self, kind, status, call, *words):
        with self.assertRaises(kind) as caught:
            call()
        error = caught.exception
        self.assertEqual(error.status_code, status)
        self.assertEqual(error.type, TYPES[status])
        for word in words:
            self.assertIn(word, str(error))
        return error

    def test_bad_request(self):
        error = self.refused(openai.BadRequestError, 400, lambda: chat(temperature=-1), "-1")
        self.assertEqual(error.param, "temperature")

    def test_too_long(self):
        error = self.refused(openai.BadRequestError, 400, lambda: complete("river " * 5000), "4096")
        self.assertEqual(error.code, "context_length_exceeded")

    def test_tools(self):
        tool = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}}}
        error = self.refused(openai.BadRequestError, 400, lambda: chat(tools=[tool]))
        self.assertEqual(error.param, "tools")
        chat(tools=[], max_tokens=1)  # asks for nothing

    def test_attention(self):
        wrong = {"attention": {"policy": "no-such-method"}}
        self.refused(openai.BadRequestError, 400, lambda: chat(extra_body=wrong), "no-such-method")
        wrong = {"attention": {"polcy": "quest"}}
        self.refused(openai.BadRequestError, 400, lambda: chat(extra_body=wrong), "polcy")

    def test_key(self):
        self.refused(openai.AuthenticationError, 401, lambda: client("a-wrong-key").models.list())

    def test_not_there(self):
        self.refused(openai.NotFoundError, 404, lambda: chat(model="no-such-model"), "no-such-model")
        self.refused(openai.NotFoundError, 404, lambda: client().embeddings.create(model=MODEL, input="river"))
        self.refused(openai.NotFoundError, 404, lambda: client().responses.create(model=MODEL, input="river"))

    def test_in_a_stream(self):
        self.refused(openai.BadRequestError, 400, lambda: list(chat(stream=True, top_p=2)), "2")
