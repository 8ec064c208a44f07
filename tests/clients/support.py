"""What the clients' tests share: where the server is, and a document that is longer than the methods' budgets."""
import os

URL = os.environ["GLIMPSE_CLIENTS_URL"]
TOOLS_URL = os.environ["GLIMPSE_CLIENTS_TOOLS_URL"]
KEY = os.environ["GLIMPSE_CLIENTS_KEY"]
PROGRAM = os.environ["GLIMPSE_CLIENTS_PROGRAM"]
FILE = os.environ["GLIMPSE_CLIENTS_FILE"]
TOOLS_MODEL = "tools-hermes"  # says anything, so that only what it is held to comes of it
MODEL = "SmolLM2-135M-Instruct.Q4_1"

# One of each kind: all, one set for many layers, pages, a tree of clusters.
METHODS = {
    "full": {"policy": "full"},
    "tidal": {"policy": "tidal", "budget": 128},
    "quest": {"policy": "quest", "budget": 128},
    "lychee-cluster": {"policy": "lychee-cluster", "budget": 128},
}

QUESTION = [{"role": "user", "content": "What is a river? Answer in one sentence."}]


def document():
    """Some 700 tokens."""
    goods = ("coal", "salt", "timber", "wool", "iron", "grain", "tea")
    return "\n".join(
        f"On day {day} the ship carried {goods[day % len(goods)]} and {day * 37 % 101} barrels of oil down the river."
        for day in range(1, 31))


def long_question():
    return [{"role": "user", "content": document() + "\n\nTell a story about this ship."}]
