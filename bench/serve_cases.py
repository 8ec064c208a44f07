"""The cases of bench/serve_bench.py: each is a function that measures and adds rows. Times are seconds."""
import dataclasses
import itertools
import re
import statistics
import time

from serve_streams import Answer, Failed, Stream, follow

SHORT, TOKENS = 512, 96
PIECE_STEP = 600
BOOK_TOKENS = 60000
SETTLE = 0.4  # idle threads of the side that was measured poll for a while: they fall asleep
LLAMA_TOKENS = 48
BEGUN_BYTES = 2000  # of a stream: it has some tokens
_salts = itertools.count()


@dataclasses.dataclass(frozen=True)
class Method:
    name: str
    budget: str = ""
    options: tuple = ()

    @property
    def written(self):
        """As bench/method_arms.h reads it."""
        return "/".join([self.name, *(f"{key}={value}" for key, value in self.options)])

    def field(self, **more):
        """The field `attention` of a request."""
        field = {"policy": self.name, "profile": "none", "min_ctx": 0, **more}
        if self.budget:
            field["budget"] = self.budget
        if self.options:
            field["opt"] = dict(self.options)
        return field


FULL = Method("full")
TIDAL = Method("tidal", "512", (("reselect", "18"),))
OTHERS = [TIDAL, Method("quest", "512"), Method("lychee-cluster", "512"), Method("kascade", "512")]


@dataclasses.dataclass(frozen=True)
class Row:
    """What was measured: its words, the method, the tokens of the prompt, the unit, and the limit, as "<= 1.03"."""
    what: str
    method: Method
    tokens: int
    unit: str
    wanted: str

    def head(self):
        return {"what": self.what, "method": self.method.name, "tokens": self.tokens}

    def judged(self, value):
        sign, limit = self.wanted.split()
        return {"wanted": self.wanted, "held": value <= float(limit) if sign == "<=" else value >= float(limit)}


def in_ms(seconds):
    return [1e3 * each for each in seconds]


def completion(bench, prompt, tokens, method=FULL, **more):
    """A stream of greedy tokens from `glimpse serve`."""
    attention = method.field(**more.pop("attention", {}))
    return Stream(bench.glimpse, "/v1/completions", {
        "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True}, "attention": attention, **more})


def llama_completion(bench, slot, prompt, tokens):
    return Stream(bench.llama, "/v1/completions", {
        "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
        "cache_prompt": True, "id_slot": slot})


def finish(*streams):
    follow(streams)
    return [Answer(stream) for stream in streams]


def per_token(answer, tokens):
    return (answer.end - answer.times[0]) / (tokens - 1)


def together_rate(answers):
    """Tokens a second of streams, while all of them run. A piece of text counts as a token; nearly all are one."""
    begin, end = max(a.times[0] for a in answers), min(a.times[-1] for a in answers)
    return sum(1 for a in answers for at in a.times if begin < at <= end) / (end - begin)


def require_same(bench, prompt, method):
    """The server's answer is that of the Engine by hand."""
    by_hand = bench.hand.job(method, [prompt], TOKENS)["tokens"][0]
    wanted = bench.glimpse.json("/detokenize", {"tokens": by_hand})["content"]
    told = finish(completion(bench, prompt, TOKENS, method))[0].text
    if told.strip() != wanted.strip():
        raise Failed(f"the server's answer with {method.written} is not the engine's: {told[:80]!r} {wanted[:80]!r}")
    return by_hand


# ---- Beside the Engine by hand.

def hand_token(bench, prompt, method):
    seconds = bench.hand.job(method, [prompt], TOKENS)["seconds"][0]
    return (seconds[-1] - seconds[0]) / (TOKENS - 1)


def served_token(bench, prompt, method):
    return per_token(finish(completion(bench, prompt, TOKENS, method))[0], TOKENS)


def watched_token(bench, prompt, method):
    """While a viewer reads what the microscope's page reads."""
    stream = completion(bench, prompt, TOKENS, method, attention={"watch": True})
    follow([stream], until=lambda: bool(stream.events()))
    viewer = Stream(bench.glimpse, f"/v1/requests/{stream.events()[0][1]['id']}/events?bins=512")
    follow([stream, viewer])
    kinds = [event["kind"] for _, event in viewer.events()]
    if kinds.count("step") < TOKENS - 1:
        raise Failed(f"a viewer saw {kinds.count('step')} steps of {TOKENS - 1}")
    return per_token(Answer(stream), TOKENS)


def token_case(bench):
    for depth, method in ((SHORT, FULL), (bench.document, FULL), (bench.document, TIDAL)):
        prompt = bench.piece(0, depth)
        require_same(bench, prompt, method)
        arms = [hand_token, served_token, watched_token]
        watched_token(bench, prompt, method)
        times = {arm: [] for arm in arms}
        for turn in range(bench.rounds):
            for arm in arms[turn % 3:] + arms[:turn % 3]:
                time.sleep(SETTLE)
                times[arm].append(arm(bench, prompt, method))
        for arm, what, bar in ((served_token, "a token", "<= 1.03"), (watched_token, "a token, watched", "<= 1.05")):
            bench.compare(Row(what, method, depth, "ms", bar), in_ms(times[arm]), in_ms(times[hand_token]))


def eight_case(bench):
    prompts = [bench.piece(30 + i, SHORT) for i in range(8)]

    def by_hand(method):
        seconds = bench.hand.job(method, prompts, TOKENS)["seconds"]
        return sum(len(each) for each in seconds) / max(each[-1] for each in seconds)

    def served(method):
        answers = finish(*[completion(bench, prompt, TOKENS, method) for prompt in prompts])
        return TOKENS * len(answers) / (max(a.end for a in answers) - min(a.sent for a in answers))

    for method in (FULL, TIDAL):
        rates = {by_hand: [], served: []}
        for turn in range(bench.rounds + 1):  # the first one prefills
            for arm in (by_hand, served) if turn % 2 else (served, by_hand):
                time.sleep(SETTLE)
                rates[arm].append(arm(method))
        bench.compare(Row("8 streams", method, SHORT, "tokens/s", ">= 0.95"), rates[served][1:], rates[by_hand][1:])


# ---- Beside llama-server.

def agreement(bench, prompt):
    """Greedy tokens that both say alike from the first one on, dense."""
    ours = require_same(bench, prompt, FULL)
    theirs = bench.llama.json("/completion", {"prompt": prompt, "n_predict": TOKENS, "temperature": 0,
                                              "ignore_eos": True, "return_tokens": True, "id_slot": 0})["tokens"]
    same = 0
    while same < min(len(ours), len(theirs)) and ours[same] == theirs[same]:
        same += 1
    return same


def llama_case(bench):
    documents = [bench.piece(15 * i, bench.document) for i in range(4)]
    same = agreement(bench, documents[0])
    bench.note(Row(f"greedy tokens as llama-server's, of {TOKENS}", FULL, bench.document, "", ">= 1"), same)
    if same == 0:
        raise Failed("not even the first token is llama-server's; nothing is timed")

    def ours(method, some):
        return finish(*[completion(bench, each, LLAMA_TOKENS, method) for each in some])

    def theirs(_, some):
        return finish(*[llama_completion(bench, slot, each, LLAMA_TOKENS) for slot, each in enumerate(some)])

    for some, bars in ((documents[:1], (">= 2.4", ">= 3.8")), (documents, (">= 2", ">= 3"))):
        arms = [(ours, FULL), (ours, TIDAL), (theirs, None)]
        for arm, method in arms:  # prefills
            arm(method, some)
        rates = {each: [] for each in arms}
        for turn in range(bench.rounds):
            for arm in arms[turn % 3:] + arms[:turn % 3]:
                time.sleep(SETTLE)
                rates[arm].append(together_rate(arm[0](arm[1], some)))
        beside = rates[theirs, None]
        what = "a stream, beside llama-server" if len(some) == 1 else "4 streams, beside llama-server"
        for method, bar in zip((FULL, TIDAL), bars):
            bench.compare(Row(what, method, bench.document, "tokens/s", bar), rates[ours, method], beside)


# ---- What streams wait for, second questions, cancelling.

def fresh(bench, number, method=FULL):
    """A prompt that uses nothing and leaves nothing."""
    return completion(bench, bench.piece(number, bench.document), 1, method, attention={"reuse": "none"})


def longest_wait(times, begin, end):
    """Between two tokens, of what lies between `begin` and `end`; what is still waited for at the end counts so far."""
    waits = itertools.pairwise([*(at for at in times if at <= end), end])
    return max(after - before for before, after in waits if after > begin)


def prefill_case(bench):
    """The document alone, and beside streams that decode."""
    for count in (1, 4):
        waits, alone_s, beside_s = [], [], []
        for _ in range(max(1, bench.rounds // 2)):
            alone_s.append(finish(fresh(bench, 60))[0].first())
            streams = [completion(bench, bench.piece(30 + i, SHORT), 4096) for i in range(count)]
            follow(streams, until=lambda: all(stream.bytes() > BEGUN_BYTES for stream in streams))
            late = fresh(bench, 60)
            follow([*streams, late], until=lambda: late.ended)
            beside = Answer(late)
            for stream in streams:
                answer = Answer(stream)
                if answer.end is not None:
                    raise Failed("a stream ended before the prompt beside it")
                waits.append(longest_wait(answer.times, beside.sent, beside.end))
                stream.close()
            wait_idle(bench)
            beside_s.append(beside.first())
        streams = "a stream" if count == 1 else f"{count} streams"
        bench.note(Row(f"longest wait of {streams} while a prompt is prefilled", FULL, bench.document, "ms", "<= 250"),
                   1e3 * max(waits))
        bench.compare(Row(f"a prompt, {streams} beside it", FULL, bench.document, "s", "<= 1.25"), beside_s, alone_s)


def question_case(bench):
    """The first token of a question behind a document that a dense question left: of the time of the method's own first
    question, and of its second one, behind what its first one left."""
    document = bench.piece(20, bench.document)
    questions = (bench.piece(n, 24) for n in itertools.count(40))

    def ask(method, salt):
        answer = finish(completion(bench, document + next(questions), 1, method, cache_salt=salt))[0]
        return answer.first(), answer.cached

    others = f"others {next(_salts)}"
    ask(FULL, others)
    for method in OTHERS:
        own = f"own {next(_salts)}"
        cold, cached = ask(method, own)
        if cached:
            raise Failed("a first question found a prefix")
        after_other, after_own = [], []
        for turn in range(3):
            for times, salt in ((after_other, others), (after_own, own)):
                seconds, cached = ask(method, salt)
                if cached < bench.document - 512 and method.name != "kascade":
                    raise Failed(f"{method.name} found {cached} tokens of {bench.document}")
                times.append(seconds)
        for what, bar, beside in (("a second question, beside a first", "<= 0.05", [cold] * len(after_other)),
                                  ("a second question, beside one behind its own", "<= 1.05", after_own)):
            bench.compare(Row(what, method, bench.document, "ms", bar), in_ms(after_other), in_ms(beside))


def gauges(bench):
    """Requests that run, and pages in use."""
    page = bench.glimpse.ask("GET", "/metrics")
    return tuple(float(re.search(rf"^glimpse:{name}\S* (\S+)", page, re.M)[1])
                 for name in ("num_requests_running", "kv_cache_usage_perc"))


def wait_idle(bench, seconds=30):
    """Seconds until nothing runs and no page is in use."""
    start = time.monotonic()
    while gauges(bench) != (0, 0):
        if time.monotonic() - start > seconds:
            raise Failed(f"pages are still in use after {seconds} seconds: {gauges(bench)}")
        time.sleep(0.002)
    return time.monotonic() - start


def cancel_case(bench):
    """Until the stream has ended and its pages are free."""
    def cut(stream, stops):
        start = time.monotonic()
        if stops:
            name = stream.events()[0][1]["id"]
            bench.glimpse.ask("DELETE", f"/v1/requests/{name}")
            follow([stream])
        else:
            stream.close()
        wait_idle(bench)
        return 1e3 * (time.monotonic() - start)

    def decoding():
        stream = completion(bench, bench.piece(0, bench.document), 512)
        follow([stream], until=lambda: stream.bytes() > BEGUN_BYTES)
        return stream

    def prefilling():
        stream = completion(bench, bench.piece(60, bench.document), 512, attention={"reuse": "none"},
                            return_progress=True)
        follow([stream], until=lambda: len(stream.events()) > 1)
        return stream

    for word, begin in (("its answer", decoding), ("its prompt", prefilling)):
        for how, stops in (("DELETE", True), ("the client leaves", False)):
            times = [cut(begin(), stops) for _ in range(bench.rounds)]
            bench.note(Row(f"cancelled in {word}: {how}", FULL, bench.document, "ms", "<= 300"), max(times))


CASES = {"token": token_case, "eight": eight_case, "llama": llama_case, "prefill": prefill_case,
         "question": question_case, "cancel": cancel_case}
AGAINST_LLAMA = {"llama"}
