// glimpse eval longbench: questions of the user's own, their metrics, and one line for what is none.
#include "glimpse/cli/user_prompts.h"

#include <gtest/gtest.h>

#include "glimpse/base/error.h"
#include "glimpse/engine/engine.h"
#include "tests/cli/process.h"
#include "tests/support/refusal.h"

namespace glimpse::cli {
namespace {

using evaluate::Metric;
using Strings = std::vector<std::string>;

TEST(UserPrompts, AreReadInTheirForms) {
  const std::string text =
      R"({"input": "Who?", "context": "A story.", "answers": ["Ann", "Anna"], "dataset": "hotpotqa", "length": 9})"
      "\n\n"
      R"({"input": "Sum up.", "context": "Long.", "answers": ["short"], "dataset": "gov_report"})"
      "\r\n"
      R"({"index": 0, "input": "Find all.", "outputs": ["1", "2"]})"
      "\n"
      R"({"problem": "1 + 1?", "answer": 2})"
      "\n"
      R"({"prompt": "Say yes", "answers": "yes", "metric": "exact", "task": "mine"})";
  const std::vector<UserPrompt> prompts = parse_user_prompts(text, std::nullopt, 100);
  ASSERT_EQ(prompts.size(), 5u);
  EXPECT_EQ(prompts[0].text, "A story.\n\nWho?");
  EXPECT_EQ(prompts[0].wanted, (Strings{"Ann", "Anna"}));
  EXPECT_EQ(prompts[0].task, "hotpotqa");
  EXPECT_EQ(prompts[0].metric, Metric::f1);
  EXPECT_EQ(prompts[1].metric, Metric::rouge_l);
  EXPECT_EQ(prompts[2].metric, Metric::all);
  EXPECT_EQ(prompts[2].task, "lines");
  EXPECT_EQ(prompts[3].metric, Metric::words);
  EXPECT_EQ(prompts[3].wanted, Strings{"2"});
  EXPECT_EQ(prompts[4].metric, Metric::exact);
  EXPECT_EQ(prompts[4].task, "mine");
  EXPECT_EQ(parse_user_prompts(text, Metric::any, 2).size(), 2u);
  EXPECT_EQ(parse_user_prompts(text, Metric::any, 2)[1].metric, Metric::any);
}

TEST(UserPrompts, SayWhatIsWrongWithTheirLine) {
  const auto why = [](const std::string& text) {
    return refusal([&] { parse_user_prompts("{\"prompt\": \"x\", \"answer\": \"y\"}\n" + text, std::nullopt, 9); });
  };
  EXPECT_NE(why("{").find("line 2: it is no JSON object"), std::string::npos);
  EXPECT_NE(why("{\"answers\": [\"x\"]}").find("line 2: it has no text"), std::string::npos);
  EXPECT_NE(why("{\"prompt\": \"x\"}").find("line 2: it says no answer"), std::string::npos);
  EXPECT_NE(why("{\"prompt\": \"x\", \"answers\": [{}]}").find("neither texts nor numbers"), std::string::npos);
  EXPECT_NE(why("{\"prompt\": 1, \"answers\": [1]}").find("'prompt' is no text"), std::string::npos);
  EXPECT_NE(why("{\"prompt\": \"x\", \"answers\": [\"1\"], \"dataset\": \"trec\"}").find("give --metric"),
            std::string::npos);
}

TEST(UserPrompts, LoseTheirMiddle) {
  engine::EngineOptions options;
  options.model = model();
  const engine::Engine engine(options);
  const text::Tokenizer& tokenizer = engine.tokenizer();
  UserPrompt prompt{"lines", "the beginning. ", {"x"}, Metric::any};
  for (int i = 0; i < 400; ++i) prompt.text += "the river was high. ";
  prompt.text += "the end?";
  const evaluate::RetrievalPrompt cut = render_user_prompt(tokenizer, prompt, 300);
  EXPECT_LE(cut.tokens.size(), 300u);
  EXPECT_GE(cut.tokens.size(), 280u);
  EXPECT_EQ(cut.content.rfind("the beginning. the river", 0), 0u) << cut.content;
  EXPECT_TRUE(cut.content.ends_with("the end?")) << cut.content;
  const evaluate::RetrievalPrompt whole = render_user_prompt(tokenizer, prompt, 1 << 20);
  EXPECT_EQ(whole.content, prompt.text);
}

TEST(EvalLongbench, AnswersTheUsersQuestions) {
  const auto file = scratch("lines.jsonl");
  write_file(file, "{\"prompt\": \"" + prose(20) +
                       "\", \"answers\": [\"x\"], \"dataset\": \"qasper\"}\n"
                       "{\"prompt\": \"why?\", \"outputs\": [\"x\"]}\n");
  const std::vector<std::string> words{"eval", "longbench", "-m",     model(),         "-t", "1",
                                       "-c",   "1024",      "--arms", "full,quest:64", "-f", file.string()};
  const Outcome outcome = run_program(words);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out.find("| qasper | 1024 | full |"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("| lines | 1024 | quest:64 |"), std::string::npos) << outcome.out;
  std::vector<std::string> other = words;
  other.insert(other.end(), {"--metric", "rouge"});
  EXPECT_NE(run_program(other).err.find("rouge_l"), std::string::npos);
  write_file(file, "{\"prompt\": \"x\"}\n");
  const Outcome refused = run_program(words);
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("lines.jsonl': line 1: it says no answer"), std::string::npos) << refused.err;
}

}  // namespace
}  // namespace glimpse::cli
