"""langchain-openai's ChatOpenAI and OpenAI, as they are."""
import asyncio
import unittest

import openai
import pydantic
from langchain_core.messages import ToolMessage
from langchain_openai import ChatOpenAI, OpenAI

from support import KEY, METHODS, MODEL, QUESTION, TOOLS_MODEL, TOOLS_URL, URL

WORDS = QUESTION[0]["content"]


def model(kind=ChatOpenAI, **fields):
    return kind(**{"model": MODEL, "base_url": URL + "/v1", "api_key": KEY, "temperature": 0, "max_tokens": 16,
                   "max_retries": 0, "timeout": 120, **fields})


class LangChain(unittest.TestCase):
    def test_invoke(self):
        answer = model().invoke(WORDS)
        self.assertIn("river", answer.content)
        self.assertEqual(answer.usage_metadata["output_tokens"], 16)
        self.assertEqual(answer.response_metadata["finish_reason"], "length")

    def test_system_and_turns(self):
        turns = [("system", "You answer briefly."), ("human", "Hello."), ("ai", "Hello!"), ("human", WORDS)]
        self.assertTrue(model().invoke(turns).content)

    def test_stream(self):
        parts = list(model(stream_usage=True).stream(WORDS))
        whole = parts[0]
        for part in parts[1:]:
            whole = whole + part
        self.assertGreater(len(parts), 4)
        self.assertEqual(whole.content, model().invoke(WORDS).content)
        self.assertEqual(whole.usage_metadata["output_tokens"], 16)

    def test_batch(self):
        alone = [model().invoke(words).content for words in (WORDS, "What is the sea?")]
        self.assertEqual([answer.content for answer in model().batch([WORDS, "What is the sea?"])], alone)

    def test_async(self):
        async def text():
            return "".join([part.content async for part in model().astream(WORDS)])

        self.assertEqual(asyncio.run(text()), model().invoke(WORDS).content)

    def test_method(self):
        for name, method in METHODS.items():
            with self.subTest(name):
                self.assertTrue(model(extra_body={"attention": method}).invoke(WORDS).content)

    def test_logprobs(self):
        answer = model(logprobs=True, top_logprobs=2).invoke(WORDS)
        self.assertEqual(len(answer.response_metadata["logprobs"]["content"]), 16)

    def test_stop(self):
        text = model().invoke(WORDS).content
        word = text.split()[3]
        self.assertEqual(model().invoke(WORDS, stop=[word]).content, text[:text.index(word)])

    def test_tools(self):
        def tide(day: int) -> int:
            """How high the tide is."""
            return day

        with self.assertRaises(openai.BadRequestError):
            model().bind_tools([tide]).invoke(WORDS)  # its template has no place for them
        calling = model(model=TOOLS_MODEL, base_url=TOOLS_URL + "/v1", temperature=2, seed=2, max_tokens=300)
        answer = calling.bind_tools([tide], tool_choice="any", parallel_tool_calls=False).invoke(WORDS)
        (call,) = answer.tool_calls
        self.assertEqual(call["name"], "tide")
        self.assertIsInstance(call["args"]["day"], int)
        streamed = None
        for part in calling.bind_tools([tide], tool_choice="tide", parallel_tool_calls=False).stream(WORDS):
            streamed = part if streamed is None else streamed + part
        self.assertEqual([each["name"] for each in streamed.tool_calls], ["tide"])
        turns = [("human", WORDS), answer, ToolMessage("high", tool_call_id=call["id"])]
        self.assertIsNotNone(calling.bind_tools([tide], tool_choice="none").invoke(turns, max_tokens=4).content)

    def test_structured_output(self):
        class Town(pydantic.BaseModel):
            """A town."""
            name: str = pydantic.Field(max_length=12)
            houses: int

        town = model(max_tokens=200).with_structured_output(Town, method="json_schema").invoke(WORDS)
        self.assertIsInstance(town, Town)

    def test_completion(self):
        model_of_text = model(OpenAI)
        text = model_of_text.invoke("One, two, three,")
        self.assertIn("four", text)
        self.assertEqual("".join(model_of_text.stream("One, two, three,")), text)
