// Tools: the prompts and grammars that come of a template, and answers read back into calls, hostile ones too.
#include "glimpse/text/chat_tools.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "glimpse/base/error.h"
#include "glimpse/text/answer_parser.h"
#include "glimpse/text/grammar.h"
#include "support.h"
#include "tests/support/places.h"
#include "tests/support/refusal.h"

namespace glimpse::text::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr const char* kTools = R"([
  {"type": "function", "function": {"name": "tide", "description": "The tide of a harbour.", "parameters":
     {"type": "object", "properties": {"harbour": {"type": "string"}, "hour": {"type": "integer"}},
      "required": ["harbour", "hour"]}}},
  {"type": "function", "function": {"name": "wind", "description": "The wind.", "parameters":
     {"type": "object", "properties": {}}}}])";

struct Form {
  std::string name;
  std::string source;
  std::string call;  ///< what a model says to call tide("Brest", 7)
  std::string two;   ///< the same and wind(), where the form has several; or empty
  friend std::ostream& operator<<(std::ostream& out, const Form& form) { return out << form.name; }
};

/// Those of the small models that call tools: Hermes' and Qwen's form (JSON between tags), Llama 3's (bare JSON).
std::string template_of(const std::string& name) {
  std::ifstream file(test::source_root() / "tests/support/templates" / (name + ".jinja"));
  return {std::istreambuf_iterator<char>(file), {}};
}

Form hermes() {
  const std::string tide =
      "<tool_call>\n{\"name\": \"tide\", \"arguments\": {\"harbour\": \"Brest\", \"hour\": 7}}\n</tool_call>";
  return {"Hermes", template_of("hermes"), tide,
          tide + "\n<tool_call>\n{\"name\": \"wind\", \"arguments\": {}}\n</tool_call>"};
}
Form llama3() {
  return {"Llama3", template_of("llama3"), R"({"name": "tide", "parameters": {"harbour": "Brest", "hour": 7}})", ""};
}

ToolRendering rendered(const Form& form, const ToolWish& wish,
                       std::vector<ChatMessage> messages = {{"user", "When?"}}) {
  return render_with_tools({form.source, "<s>", "</s>"}, messages, wish);
}

ToolWish wish_of(ToolWish::Choice choice = ToolWish::Choice::automatic) {
  return {choice, kTools, {}, {}, std::chrono::seconds(20)};
}

class ToolForms : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(Templates, ToolForms, ::testing::Values(hermes(), llama3()),
                         [](const auto& instance) { return instance.param.name; });

void expect_tide(const ToolCall& call) {
  EXPECT_EQ(call.name, "tide");
  EXPECT_EQ(Json::parse(call.arguments, nullptr, false), Json({{"harbour", "Brest"}, {"hour", 7}})) << call.arguments;
}

TEST_P(ToolForms, ThePromptHasTheTools) {
  const ToolRendering made = rendered(GetParam(), wish_of());
  EXPECT_THAT(made.prompt, HasSubstr("The tide of a harbour."));
  EXPECT_THAT(made.prompt, HasSubstr("When?"));
  EXPECT_FALSE(made.format.grammar.empty()) << "free until something says that it calls";
  EXPECT_EQ(made.format.triggers.empty(), GetParam().name == "Llama3") << "no text does, but a name";
  const std::vector<std::string> names{"tide", "wind"};
  EXPECT_EQ(made.format.names, made.format.triggers.empty() ? names : std::vector<std::string>());
  const AnswerFormat required = rendered(GetParam(), wish_of(ToolWish::Choice::required)).format;
  EXPECT_TRUE(required.triggers.empty() && !required.grammar.empty());
}

TEST_P(ToolForms, CallsAreReadBack) {
  const Form& form = GetParam();
  for (const auto choice : {ToolWish::Choice::automatic, ToolWish::Choice::required}) {
    const AnswerParser parser(rendered(form, wish_of(choice)).format);
    const auto one = parser.parse(form.call, false);
    ASSERT_TRUE(one && one->calls.size() == 1) << form.call;
    expect_tide(one->calls[0]);
    EXPECT_EQ(one->content, "");
    if (form.two.empty()) continue;
    const auto two = parser.parse(form.two, false);
    ASSERT_TRUE(two && two->calls.size() == 2);
    EXPECT_EQ(two->calls[1].name, "wind");
    EXPECT_EQ(two->calls[1].arguments, "{}");
  }
  const AnswerParser parser(rendered(form, wish_of()).format);
  const auto content = parser.parse("At noon, I think.", false);
  ASSERT_TRUE(content);
  EXPECT_EQ(content->content, "At noon, I think.");
  EXPECT_TRUE(content->calls.empty());
}

TEST_P(ToolForms, APartOfAnAnswerIsABeginningOfTheWhole) {
  const Form& form = GetParam();
  const AnswerParser parser(rendered(form, wish_of()).format);
  const auto whole = parser.parse(form.call, false);
  ASSERT_TRUE(whole);
  std::string last;
  for (std::size_t length = 0; length <= form.call.size(); ++length) {
    const auto part = parser.parse(form.call.substr(0, length), true);
    if (!part || part->calls.empty()) continue;
    EXPECT_EQ(part->calls.size(), 1u);
    EXPECT_TRUE(whole->calls[0].arguments.starts_with(part->calls[0].arguments)) << part->calls[0].arguments;
    EXPECT_TRUE(part->calls[0].arguments.starts_with(last)) << part->calls[0].arguments;
    last = part->calls[0].arguments;
  }
  EXPECT_EQ(last, whole->calls[0].arguments);
}

/// The texts of all bytes.
std::shared_ptr<const TokenTexts> byte_texts() {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  return std::make_shared<const TokenTexts>(std::move(texts), std::vector<Token>{});
}

TEST_P(ToolForms, TheGrammarTakesACallAndNoOther) {
  const Form& form = GetParam();
  for (const auto choice : {ToolWish::Choice::automatic, ToolWish::Choice::required}) {
    const AnswerFormat format = rendered(form, wish_of(choice)).format;
    const std::string immediate = without_content(format);
    const auto grammar = std::make_shared<const Grammar>(immediate.empty() ? format.grammar : immediate, byte_texts());
    const auto takes = [&](const std::string& text) {
      GrammarFollower at(
          {grammar, format.triggers.empty() ? format.generation_prompt : "", format.triggers, format.names});
      for (const char c : text) {
        const auto byte = static_cast<Token>(static_cast<unsigned char>(c));
        if (!at.allows(byte)) return false;
        at.accept(byte);
      }
      return at.binds() && at.may_end();
    };
    EXPECT_TRUE(takes(form.call));
    std::string wrong = form.call;
    wrong.replace(wrong.find("tide"), 4, "moon");
    EXPECT_FALSE(takes(wrong)) << "no such function";
    wrong = form.call;
    wrong.replace(wrong.find(" 7"), 2, " \"");
    EXPECT_FALSE(takes(wrong)) << "not the kind that the schema says";
    EXPECT_FALSE(takes(form.call.substr(0, form.call.size() - 3)));
  }
}

TEST_P(ToolForms, AWholeConversationRenders) {
  const Form& form = GetParam();
  const std::vector<ChatMessage> messages{{"system", "Be brief."},
                                          {"user", "When?"},
                                          {"assistant", "", {{"abcdefghi", "tide", R"({"harbour":"Brest","hour":7})"}}},
                                          {"tool", "high at noon", {}, "abcdefghi", "tide"}};
  const std::string prompt = rendered(form, wish_of(), messages).prompt;
  EXPECT_THAT(prompt, HasSubstr("high at noon"));
  const std::size_t call = prompt.find("Brest"), answer = prompt.find("high at noon");
  EXPECT_LT(call, answer);
  ToolWish none = wish_of(ToolWish::Choice::none);
  none.tools.clear();
  EXPECT_THAT(rendered(form, none, messages).prompt, Not(HasSubstr("The wind.")));
}

/// Whatever a model says, reading it ends, and in no crash.
void expect_harmless(const AnswerParser& parser, const std::string& text) {
  for (const bool partial : {false, true}) {
    const auto read = parser.parse(text, partial);
    if (!read) continue;
    EXPECT_LE(read->content.size(), text.size() + 16);
    EXPECT_LE(read->calls.size(), text.size());
  }
}

TEST_P(ToolForms, HostileAnswersAreRead) {
  const Form& form = GetParam();
  const AnswerParser parser(rendered(form, wish_of()).format);
  const std::string open = form.call.substr(0, form.call.find("Brest"));
  const auto repeated = [](const std::string& text, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  };
  std::vector<std::string> all{"",
                               std::string(1, '\0'),
                               "\xff\xfe<tool_call>\xc3",
                               form.call + form.call,
                               form.call + "x",
                               "x" + form.call,
                               open,
                               open + "\\u12",
                               open + "\\",
                               open + std::string(100000, 'a'),
                               open + repeated("\\\"", 50000),
                               repeated("<tool_call>", 20000),
                               repeated("{\"name\": ", 5000),
                               repeated("<tool_call>\n{", 5000),
                               std::string(200000, '<'),
                               std::string(100000, '{'),
                               std::string(100000, '\n')};
  for (const int levels : {10, 60, 70, 1000, 16000, 17000}) {
    std::string nested = form.call;
    nested.replace(nested.find("\"Brest\""), 7, repeated("[", levels) + repeated("]", levels));
    all.push_back(nested);
    all.push_back(open.substr(0, open.size() - 1) + repeated("{\"a\":[", levels));
    all.push_back(open.substr(0, open.size() - 1) + repeated("[\"]\\\"]\",", levels));
  }
  for (const std::string& text : all) {
    SCOPED_TRACE(text.substr(0, 40) + " of " + std::to_string(text.size()));
    expect_harmless(parser, text);
  }
}

TEST_P(ToolForms, ALongAnswerIsReadHoweverManyBracketsItHas) {
  const Form& form = GetParam();
  const AnswerParser parser(rendered(form, wish_of()).format);
  Json list = Json::array();
  for (int i = 0; i < 20000; ++i) list.push_back({{"hour", {i}}, {"says", "[ebb"}});  // more open than close
  std::string text = form.call;
  text.replace(text.find("\"Brest\""), 7, list.dump());
  for (const bool partial : {true, false}) {
    const auto read = parser.parse(partial ? text.substr(0, text.size() - 200) : text, partial);
    ASSERT_TRUE(read && read->calls.size() == 1u);
    EXPECT_GT(read->calls[0].arguments.size(), text.size() / 2);
    if (partial) continue;
    EXPECT_EQ(Json::parse(read->calls[0].arguments)["harbour"], list);
  }
}

TEST_P(ToolForms, LevelsAreCountedWhateverStandsInTexts) {
  // Strings that close what is open and open what is not: the levels are 17,000, and 20.
  const Form& form = GetParam();
  const AnswerParser parser(rendered(form, wish_of()).format);
  const auto nested = [&](int levels, const std::string& between) {
    std::string text = form.call, value = "0";
    std::string open;
    for (int i = 0; i < levels; ++i) open += "[" + between;
    text.replace(text.find("\"Brest\""), 7, open + value + std::string(static_cast<std::size_t>(levels), ']'));
    return text;
  };
  EXPECT_FALSE(parser.parse(nested(17000, R"("]\\", "\"]", )"), false));
  const auto flat = parser.parse(nested(20, R"("[[[[[[[[\"", )"), false);
  ASSERT_TRUE(flat && flat->calls.size() == 1u);
}

TEST_P(ToolForms, MutatedAnswersAreRead) {
  const Form& form = GetParam();
  const AnswerParser parser(rendered(form, wish_of()).format);
  std::mt19937 random(7);
  const std::string pieces = "{}[]<>\"\\,:/ \n_toolcname1e-\xc3\xff";
  for (int round = 0; round < 3000; ++round) {
    std::string text = form.call + (round % 3 == 0 ? form.call : "");
    for (int i = static_cast<int>(random() % 6); i >= 0; --i) {
      const std::size_t at = random() % text.size();
      const char piece = pieces[random() % pieces.size()];
      switch (random() % 3) {
        case 0:
          text[at] = piece;
          break;
        case 1:
          text.insert(at, 1 + random() % 3, piece);
          break;
        default:
          text.erase(at, 1 + random() % 4);
      }
      if (text.empty()) text = "x";
    }
    expect_harmless(parser, text);
  }
}

TEST(ChatTools, OneFunctionThatMustBeCalledIsTheOnlyOne) {
  ToolWish wish = wish_of(ToolWish::Choice::required);
  wish.tools = Json::array({Json::parse(kTools)[1]}).dump();
  const AnswerFormat format = rendered(hermes(), wish).format;
  EXPECT_THAT(format.grammar, Not(HasSubstr("tide")));
}

TEST(ChatTools, SeveralCallsWhereWanted) {
  ToolWish wish = wish_of(ToolWish::Choice::required);
  const auto takes_two = [&] {
    const AnswerFormat format = rendered(hermes(), wish).format;
    GrammarFollower at({std::make_shared<const Grammar>(format.grammar, byte_texts()), format.generation_prompt, {}});
    for (const char c : hermes().two) {
      if (!at.allows(static_cast<Token>(c))) return false;
      at.accept(static_cast<Token>(c));
    }
    return at.may_end();
  };
  wish.parallel = true;
  EXPECT_TRUE(takes_two());
  wish.parallel = false;
  EXPECT_FALSE(takes_two());
}

TEST(ChatTools, ATemplateWithoutToolsRefusesThem) {
  const std::string plain =
      "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor "
      "%}";
  EXPECT_THAT(refusal([&] { rendered({"", plain, "", ""}, wish_of()); }), HasSubstr("no place for tools"));
  EXPECT_THAT(refusal([&] { rendered({"", "{% endless", "", ""}, wish_of()); }), HasSubstr("refuses"));
}

TEST(ChatTools, LimitsEndInAnError) {
  ToolWish slow = wish_of();
  slow.time = std::chrono::milliseconds(1);
  const std::string wait = "{% for i in range(100000000) %}{% endfor %}";
  const std::string source = wait + hermes().source;
  EXPECT_THAT(refusal([&] { rendered({"", source, "", ""}, slow); }), HasSubstr("more than 0.00"));
  ToolWish bad = wish_of();
  bad.tools = R"([{"type": "function", "function": {"name": "x", "parameters": {"type": "nonsense"}}}])";
  EXPECT_THAT(refusal([&] { rendered(hermes(), bad); }), HasSubstr("refuses the messages or tools"));
  const std::vector<ChatMessage> broken{{"user", "x"}, {"assistant", "", {{"i", "tide", "{"}}}};
  EXPECT_THAT(refusal([&] { rendered(hermes(), wish_of(), broken); }), HasSubstr("arguments"));
}

}  // namespace
}  // namespace glimpse::text::testing
