"""Four streams at once, each by its own method, say what each says alone."""
import asyncio
import unittest

import openai

from support import KEY, METHODS, MODEL, URL, long_question


async def tokens_of(client, method):
    """Tokens of a greedy answer, by their bytes."""
    stream = await client.chat.completions.create(
        model=MODEL, messages=long_question(), temperature=0, max_tokens=32, stream=True, logprobs=True,
        extra_body={"attention": method})
    lists = [part.choices[0].logprobs.content async for part in stream if part.choices[0].logprobs]
    return [bytes(token.bytes) for tokens in lists for token in tokens]


class AtOnce(unittest.IsolatedAsyncioTestCase):
    async def test_four_methods(self):
        async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0, timeout=300) as client:
            alone = {name: await tokens_of(client, method) for name, method in METHODS.items()}
            together = await asyncio.gather(*(tokens_of(client, method) for method in METHODS.values()))
        for (name, tokens), others in zip(alone.items(), together):
            with self.subTest(name):
                self.assertGreater(len(tokens), 8)
                self.assertEqual(others, tokens)
