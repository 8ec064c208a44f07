// The page at `/` in a headless Chromium, against what the engine itself tells of the same requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "glimpse/policies/policy.h"
#include "tests/server/devtools.h"
#include "tests/server/told.h"
#include "tests/support/find_browser.h"

namespace glimpse::server {
namespace {

using ::testing::HasSubstr;

const std::string kHostile =
    "</script><script>document.title='x'</script><!-- <b>b</b> &amp; <img src=x onerror=alert(1)>";
const std::string kDocument = "the river was high " + kHostile + " and the fox went to the market in the old town";
const std::string kQuestion = "where did the fox go <i>now</i>?";

ServerOptions page_options() {
  ServerOptions options = small_options("llama2");  // which has a chat template
  options.api_key = "secret";
  options.engine.prefill_chunk = 16;
  return options;
}

constexpr int kMostTokens = 10;

Told told_of(const std::string& policy, int budget) {
  engine::Engine engine(page_options().engine);
  policies::PolicyOptions options;
  if (budget > 0) options.budget = plan::Budget{plan::BudgetRule::tokens, static_cast<double>(budget)};
  engine::Request request;
  request.plan = policies::make_plan(policy, engine.shape(), options);
  const std::vector<text::ChatMessage> messages{{"user", kDocument + "\n\n" + kQuestion}};
  request.prompt = engine.tokenizer().apply_chat(messages, true);
  request.max_tokens = kMostTokens;
  request.audit_every = policy == "full" ? 0 : 1;
  return told_by_engine(engine, std::move(request));
}

std::string quoted(const std::string& text) {
  return JsonValue(text).dump();
}

/// Functions that the tests call in the page.
const std::string kHelp = R"(
window.until = (ready) => new Promise((done) => {
  const look = () => ready() ? done(true) : setTimeout(look, 5);
  look();
});
window.frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
window.cellsOf = (panel) => {
  const map = panel.map, step = map.step, pixels = map.canvas.getContext('2d');
  const rows = [];
  for (let row = 0; row < panel.run.rows; ++row) {
    let cells = '';
    for (let p = 0; p <= step.position; ++p) {
      const x = Math.floor((p + 0.5) / (step.position + 1) * map.canvas.width);
      const [r, g, b] = pixels.getImageData(x, map.top(row) + Math.floor(map.rowHeight / 2), 1, 1).data;
      cells += r === 255 && g === 255 && b === 255 ? '.' : b > r + 20 ? '#' : 'o';
    }
    rows.push(cells);
  }
  return rows;
};
window.look = async (panel, token) => {
  panel.choose(token, true);
  const step = panel.step;
  if (step) await until(() => step.sets !== null);
  await frame();
  panel.showTable(true);
  const text = (name) => panel.find(name).textContent;
  const spans = (name) => [...panel.find(name).children].map((each) => ({text: each.textContent, name: each.className,
      first: Number(each.dataset.first), end: Number(each.dataset.end)}));
  return {chosen: text('.chosen'), bytes: text('.bytes'), title: text('.title'), cells: step ? cellsOf(panel) : [],
          table: [...panel.find('.table').querySelectorAll('tbody tr')].map(
              (row) => [...row.cells].map((cell) => cell.textContent)),
          document: spans('.document'), answer: spans('.answer'), width: panel.map.canvas.width,
          passages: [...panel.find('.passages').querySelectorAll('tbody tr')].map((row) => row.textContent),
          now: panel.find('.answer .now') ? panel.find('.answer .now').textContent : null};
};
)";

class Microscope : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto program = reference::find_browser();
    if (!program) GTEST_SKIP() << "no chromium or chrome in PATH; scripts/install-packages --browser installs one";
    program_ = *program;
    server_ = std::make_unique<Running>(page_options());
    page_ = std::make_unique<Browser>(program_, server_->address());
    page_->evaluate(kHelp);
  }
  void TearDown() override {
    if (page_ == nullptr) return;
    page_->evaluate("1");
    EXPECT_THAT(page_->complaints(), ::testing::IsEmpty());
  }
  void give_key() {
    EXPECT_EQ(page_->evaluate("until(() => byId('status').textContent !== '')"), true);
    EXPECT_THAT(page_->evaluate("byId('status').textContent").get<std::string>(), HasSubstr("asks for a key"));
    page_->evaluate("byId('key').value = 'secret'; loadProps()");
  }
  void ask(const std::string& fields) {
    page_->evaluate("byId('document').value = " + quoted(kDocument) + "; byId('question').value = " +
                    quoted(kQuestion) + "; byId('tokens').value = " + std::to_string(kMostTokens) + "; " + fields +
                    "; byId('send').click(); until(() => !byId('send').disabled)");
    EXPECT_THAT(page_->evaluate("byId('status').textContent").get<std::string>(), HasSubstr("Done."));
  }
  JsonValue look(Browser& page, int panel, std::size_t token) {
    return page.evaluate("look(panels[" + std::to_string(panel) + "], " + std::to_string(token) + ")");
  }

  std::string program_;
  std::unique_ptr<Running> server_;
  std::unique_ptr<Browser> page_;
};

/// "0–3, 17"
std::string ranges(const JsonValue& line) {
  if (line["tokens"].is_null()) return "0–" + std::to_string(line["position"].get<int>());
  std::string text;
  const auto tokens = line["tokens"].get<std::vector<int>>();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool joins = i > 0 && tokens[i] == tokens[i - 1] + 1;
    const bool goes_on = i + 1 < tokens.size() && tokens[i + 1] == tokens[i] + 1;
    if (joins && goes_on) continue;
    text += (joins ? "–" : text.empty() ? "" : ", ") + std::to_string(tokens[i]);
  }
  return text;
}

/// A step as the page shows it, against the trace's lines.
void expect_step(const JsonValue& seen, const Told& told, std::size_t step) {
  const JsonValue& heads = told.steps[step]["heads"];
  ASSERT_EQ(seen["cells"].size(), heads.size());
  ASSERT_EQ(seen["table"].size(), heads.size());
  const auto position = heads[0]["position"].get<std::size_t>();
  ASSERT_GT(seen["width"].get<std::size_t>(), 3 * position) << "a token has some pixels, its middle is its own";
  std::map<int, int> readers;
  for (std::size_t row = 0; row < heads.size(); ++row) {
    const JsonValue& line = heads[row];
    std::string cells(position + 1, line["tokens"].is_null() ? 'o' : '.');
    if (line["tokens"].is_array()) {
      for (const int p : line["tokens"]) cells[static_cast<std::size_t>(p)] = '#', ++readers[p];
    }
    EXPECT_EQ(seen["cells"][row], cells) << "step " << step << " row " << row;
    const JsonValue& words = seen["table"][row];
    EXPECT_EQ(words[0], std::to_string(line["layer"].get<int>()));
    EXPECT_EQ(words[1], std::to_string(line["kv_head"].get<int>()));
    EXPECT_EQ(words[2], line["role"]);
    EXPECT_EQ(words[3], std::to_string(line["tokens"].is_null() ? position + 1 : line["tokens"].size()));
    EXPECT_EQ(words[6], ranges(line));
    if (!line["coverage"].is_null()) {
      EXPECT_NEAR(std::stod(words[5].get<std::string>()), line["coverage"].get<double>(), 5.1e-5);
    }
  }
  for (const JsonValue& piece : seen["document"]) {
    for (int p = piece["first"]; p < piece["end"].get<int>(); ++p) {
      EXPECT_EQ(piece["name"].get<std::string>().starts_with("h"), readers.contains(p)) << "position " << p;
    }
  }
}

void expect_answer(const JsonValue& seen, const Told& told, std::size_t prompt) {
  ASSERT_EQ(seen["answer"].size(), told.tokens.size());
  for (std::size_t i = 0; i < told.tokens.size(); ++i) {
    std::string text = told.texts[prompt + i];
    if (text.empty()) text = "▫";
    EXPECT_EQ(seen["answer"][i]["text"], text.find_first_not_of('\n') == std::string::npos ? "⏎\n" : text);
    double mean = 0;
    if (i == 0) continue;
    for (const JsonValue& line : told.steps[i - 1]["heads"]) mean += line["coverage"].get<double>();
    mean /= static_cast<double>(told.steps[i - 1]["heads"].size());
    const char* name = mean >= 0.99 ? "c4" : mean >= 0.95 ? "c3" : mean >= 0.9 ? "c2" : "c1";
    EXPECT_THAT(seen["answer"][i]["name"].get<std::string>(), HasSubstr(name)) << "token " << i;
  }
}

TEST_F(Microscope, EveryCellIsWhatTheEngineTells) {
  give_key();
  ask("byId('policy-a').value = 'tidal'; byId('budget-a').value = '16'");
  const Told told = told_of("tidal", 16);
  ASSERT_GT(told.steps.size(), 3u);
  const std::size_t prompt = told.texts.size() - told.tokens.size();
  std::set<int> ever;
  for (const JsonValue& step : told.steps) {
    for (const JsonValue& line : step["heads"]) {
      if (line["tokens"].is_array()) ever.merge(line["tokens"].get<std::set<int>>());
    }
  }
  for (std::size_t token = 1; token < told.tokens.size(); ++token) {
    const JsonValue seen = look(*page_, 0, token);
    expect_step(seen, told, token - 1);
    EXPECT_THAT(seen["chosen"].get<std::string>(), HasSubstr("Token " + std::to_string(token + 1) + " of "));
    for (const JsonValue& piece : seen["document"]) {
      if (piece["name"].get<std::string>().starts_with("h")) continue;
      for (int p = piece["first"]; p < piece["end"].get<int>(); ++p) {
        EXPECT_EQ(piece["name"] == "never", !ever.contains(p)) << "position " << p;
      }
    }
  }
  const JsonValue seen = look(*page_, 0, 2);
  expect_answer(seen, told, prompt);
  std::string text, expected;
  for (const JsonValue& piece : seen["document"]) text += piece["text"].get<std::string>();
  for (std::size_t p = 0; p < prompt; ++p) expected += told.texts[p];
  EXPECT_EQ(text, expected);
  EXPECT_THAT(text, HasSubstr(kHostile)) << "tags are text";
  EXPECT_EQ(page_->evaluate("document.querySelectorAll('.panel b b, .panel script, .panel img, .panel i').length"), 0);
  EXPECT_EQ(page_->evaluate("document.title"), "glimpse: the microscope");
  EXPECT_GT(seen["passages"].size(), 0u);
  EXPECT_EQ(page_->evaluate("panels[0].find('.chosen').getAttribute('aria-live')"), "polite");
  // In the text's order there is each passage of 32 tokens that a set held.
  const JsonValue passages = page_->evaluate(
      "panels[0].find('.order').value = 'first'; panels[0].find('.order').dispatchEvent(new Event('change')); "
      "[...panels[0].find('.passages').querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) => "
      "cell.textContent))");
  std::map<std::size_t, std::vector<double>> shares;  // of each step, by the passage's first position
  std::size_t steps = 0;
  for (const JsonValue& step : told.steps) {
    std::map<std::size_t, double> reads;
    double all = 0;
    for (const JsonValue& line : step["heads"]) {
      if (line["tokens"].is_null()) continue;
      for (const std::size_t p : line["tokens"]) {
        ++all;
        if (p < prompt) ++reads[p / 32 * 32];
      }
    }
    ++steps;
    for (const auto& [first, count] : reads) shares[first].push_back(count / all);
  }
  ASSERT_EQ(passages.size(), shares.size());
  std::size_t place = 0;
  for (const auto& [first, of_steps] : shares) {
    const JsonValue& row = passages[place++];
    double sum = 0;
    for (const double share : of_steps) sum += share;
    EXPECT_EQ(row[0], std::to_string(first) + "–" + std::to_string(std::min(first + 32, prompt) - 1));
    EXPECT_NEAR(std::stod(row[1].get<std::string>()), 100 * *std::max_element(of_steps.begin(), of_steps.end()),
                0.0051);
    EXPECT_NEAR(std::stod(row[2].get<std::string>()), 100 * sum / static_cast<double>(steps), 0.0051);
  }
  char bytes[64];
  std::snprintf(bytes, sizeof bytes, "%.2f KB of %.2f KB", told.steps[1]["bytes_read"].get<double>() / 1000,
                told.steps[1]["dense_bytes"].get<double>() / 1000);
  EXPECT_THAT(seen["bytes"].get<std::string>(), HasSubstr(bytes));

  // By keys alone.
  const auto press = [&](const std::string& key) {
    for (const char* type : {"rawKeyDown", "keyUp"})
      page_->call("Input.dispatchKeyEvent", {{"type", type}, {"key", key}});
  };
  page_->evaluate("panels[0].find('.answer').focus()");
  press("ArrowRight");
  EXPECT_EQ(page_->evaluate("panels[0].token"), 3);
  press("Home");
  EXPECT_EQ(page_->evaluate("panels[0].token"), 0);
  press("End");
  EXPECT_EQ(page_->evaluate("panels[0].token"), told.tokens.size() - 1);
  page_->evaluate("panels[0].map.canvas.focus()");
  for (const char* key : {"ArrowDown", "ArrowDown", "ArrowRight"}) press(key);
  const std::string where = page_->evaluate("panels[0].find('.where').textContent");
  const JsonValue line = told.steps.back()["heads"][1];
  EXPECT_THAT(where, HasSubstr("Layer 0, KV head 1 (" + line["role"].get<std::string>() + ")"));
  EXPECT_THAT(where, HasSubstr("Position 1 "));
}

TEST_F(Microscope, TwoMethodsStandSideBySideAndAreSaved) {
  give_key();
  ask("byId('two').click(); byId('policy-a').value = 'tidal'; byId('budget-a').value = '16'; "
      "byId('policy-b').value = 'quest'; byId('budget-b').value = '48'");
  const Told told[] = {told_of("tidal", 16), told_of("quest", 48)};
  const JsonValue sums = page_->evaluate(
      "[...document.querySelectorAll('#sums tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))");
  ASSERT_EQ(sums.size(), 2u);
  std::vector<JsonValue> seen;
  for (int panel = 0; panel < 2; ++panel) {
    seen.push_back(look(*page_, panel, 2));
    expect_step(seen.back(), told[panel], 1);
    double read = 0, dense = 0;
    for (const JsonValue& step : told[panel].steps) {
      read += step["bytes_read"].get<double>();
      dense += step["dense_bytes"].get<double>();
    }
    char share[32];
    std::snprintf(share, sizeof share, "%.2f %%", 100 * read / dense);
    EXPECT_EQ(sums[static_cast<std::size_t>(panel)][4], share);
    EXPECT_EQ(sums[static_cast<std::size_t>(panel)][1], std::to_string(told[panel].tokens.size()));
  }
  const std::size_t least = std::min(told[0].tokens.size(), told[1].tokens.size());
  std::size_t same = 0;
  while (same < least && told[0].tokens[same] == told[1].tokens[same]) ++same;
  const bool equal = told[0].tokens == told[1].tokens;
  EXPECT_EQ(sums[1][7], equal ? "the same" : "differs from token " + std::to_string(same + 1) + " on");

  // The saved page shows the same, without the server.
  const std::string html = page_->evaluate("savedPage()");
  server_->join();
  for (const char* outside : {"<link", "<script src", "http:", "https:", "@import", "url("}) {
    EXPECT_EQ(html.substr(0, html.find("<script>")).find(outside), std::string::npos) << outside;
  }
  const auto file = std::filesystem::temp_directory_path() / ("glimpse-saved-" + std::to_string(::getpid()) + ".html");
  std::ofstream(file) << html;
  Browser saved(program_, "file://" + file.string());
  saved.evaluate(kHelp);
  for (int panel = 0; panel < 2; ++panel) {
    const JsonValue again = look(saved, panel, 2);
    for (const char* key : {"cells", "table", "document", "answer", "bytes", "chosen", "title", "passages"}) {
      EXPECT_EQ(again[key], seen[static_cast<std::size_t>(panel)][key]) << key;
    }
  }
  EXPECT_EQ(saved.evaluate("document.title"), "glimpse: the microscope");
  EXPECT_EQ(saved.evaluate("byId('ask').hidden"), true);
  EXPECT_THAT(saved.complaints(), ::testing::IsEmpty());
  std::filesystem::remove(file);
}

TEST_F(Microscope, AnotherClientsRequestIsWatchedByItsId) {
  give_key();
  JsonValue body{{"messages", {{{"role", "user"}, {"content", kDocument + "\n\n" + kQuestion}}}},
                 {"max_tokens", kMostTokens},
                 {"temperature", 0},
                 {"attention", {{"policy", "tidal"}, {"budget", 16}, {"audit", 1}, {"watch", true}}}};
  const Reply reply = server_->client().post("/v1/chat/completions", body, "Authorization: Bearer secret\r\n");
  const std::string id = reply.json()["id"];
  page_->evaluate("location.hash = '#request=" + id +
                  "'; until(() => byId('status').textContent.includes('has ended'))");
  expect_step(look(*page_, 0, 2), told_of("tidal", 16), 1);
  EXPECT_EQ(page_->evaluate("location.hash = '#request=nobody'; "
                            "until(() => byId('status').textContent.includes('no watched request'))"),
            true);
}

/// Controls without a name, ids that are there twice, headings that skip a level, and text of too little contrast.
const std::string kAccess = R"((() => {
  const problems = [];
  const visible = (each) => each.getClientRects().length > 0;
  for (const each of document.querySelectorAll('button, input, select, textarea, canvas, [role="region"], [role="img"]')) {
    if (!visible(each)) continue;
    const labels = [...(each.labels || [])].map((label) => label.textContent).join('');
    const by = each.getAttribute('aria-labelledby');
    const name = each.getAttribute('aria-label') || (by && document.getElementById(by).textContent) || labels || each.textContent;
    if (!name.trim()) problems.push('no name: ' + each.outerHTML.slice(0, 120));
  }
  for (const each of document.querySelectorAll('[tabindex="0"]')) {
    if (!each.getAttribute('role')) problems.push('no role: ' + each.outerHTML.slice(0, 80));
  }
  const ids = [...document.querySelectorAll('[id]')].map((each) => each.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) problems.push('id twice: ' + id);
  let level = 0;
  for (const heading of document.querySelectorAll('h1, h2, h3, h4')) {
    if (!visible(heading)) continue;
    const now = Number(heading.tagName[1]);
    if (now > level + 1) problems.push('heading skips: ' + heading.textContent);
    level = now;
  }
  if (!document.documentElement.lang || !document.title) problems.push('no language or title');
  const parse = (text) => {
    const parts = text.match(/[\d.]+/g).map(Number);
    return parts.length > 3 ? parts : [...parts, 1];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const ground = (each) => {
    const own = parse(getComputedStyle(each).backgroundColor);
    if (own[3] === 1) return own;
    return over(own, each.parentElement ? ground(each.parentElement) : [255, 255, 255, 1]);
  };
  const light = (colour) => [0.2126, 0.7152, 0.0722].reduce((sum, part, i) => {
    const value = colour[i] / 255;
    return sum + part * (value <= 0.03928 ? value / 12.92 : Math.pow((value + 0.055) / 1.055, 2.4));
  }, 0);
  let checked = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
    const each = node.parentElement;
    if (!node.textContent.trim() || !visible(each) || each.closest(':disabled, script, style, template')) continue;
    const under = ground(each), ink = over(parse(getComputedStyle(each).color), under);
    const [low, high] = [light(ink), light(under)].sort((a, b) => a - b);
    ++checked;
    if ((high + 0.05) / (low + 0.05) < 4.5) {
      problems.push('contrast ' + ((high + 0.05) / (low + 0.05)).toFixed(2) + ': ' + each.className + ' ' + node.textContent.slice(0, 40));
    }
  }
  if (checked < 30) problems.push('only ' + checked + ' texts');
  return [...new Set(problems)];
})())";

TEST_F(Microscope, HasNamesRolesAndContrast) {
  give_key();
  ask("byId('two').click(); byId('policy-a').value = 'tidal'; byId('budget-a').value = '16'; "
      "byId('policy-b').value = 'full'");
  look(*page_, 0, 3);
  look(*page_, 1, 1);
  for (const char* scheme : {"light", "dark"}) {
    page_->call("Emulation.setEmulatedMedia", {{"features", {{{"name", "prefers-color-scheme"}, {"value", scheme}}}}});
    page_->evaluate("frame()");
    EXPECT_EQ(page_->evaluate(kAccess), JsonValue::array()) << scheme;
  }
}

// What came since the last frame has no element yet.
TEST_F(Microscope, ATokenIsChosenBeforeItIsDrawn) {
  give_key();
  ask("byId('policy-a').value = 'tidal'; byId('budget-a').value = '16'");
  const JsonValue chosen = page_->evaluate(
      "frame().then(() => { const panel = panels[0]; panel.tokens.splice(1).forEach((token) => token.remove()); "
      "panel.choose(3, true); return [panel.token, panel.tokens.length, panel.find('.now').dataset.token]; })");
  EXPECT_EQ(chosen, (JsonValue{3, kMostTokens, "3"}));
}

TEST_F(Microscope, AxeFindsNothing) {
  const char* file = std::getenv("GLIMPSE_TEST_AXE");
  if (file == nullptr)
    GTEST_SKIP() << "GLIMPSE_TEST_AXE names no axe.min.js (axe-core; PyPI's axe-playwright-python has it)";
  std::ifstream source(file);
  const std::string axe{std::istreambuf_iterator<char>(source), {}};
  ASSERT_FALSE(axe.empty()) << file;
  give_key();
  ask("byId('two').click(); byId('policy-a').value = 'tidal'; byId('budget-a').value = '16'; "
      "byId('policy-b').value = 'full'");
  look(*page_, 0, 3);
  look(*page_, 1, 1);
  page_->call("Runtime.evaluate", {{"expression", axe}});
  for (const char* scheme : {"light", "dark"}) {
    page_->call("Emulation.setEmulatedMedia", {{"features", {{{"name", "prefers-color-scheme"}, {"value", scheme}}}}});
    page_->evaluate("frame()");
    const JsonValue found = page_->evaluate(
        "axe.run().then((said) => said.violations.map((each) => [each.impact, each.id, each.nodes.map((node) => "
        "node.html.slice(0, 160))]))");
    EXPECT_EQ(found, JsonValue::array()) << scheme;
    EXPECT_GT(page_->evaluate("axe.run().then((said) => said.passes.length)"), 20);
  }
}

TEST_F(Microscope, StopEndsTheRequestsAndErrorsAreTold) {
  give_key();
  // A prompt of many chunks: it is being prefilled when Stop comes.
  page_->evaluate(
      "byId('document').value = 'the river was high '.repeat(props.default_generation_settings.n_ctx / 8); "
      "byId('policy-a').value = 'tidal'; byId('send').click(); until(() => panels.length > 0)");
  page_->evaluate("byId('stop').click(); until(() => !byId('send').disabled)");
  EXPECT_EQ(page_->evaluate("byId('status').textContent"), "Stopped.");
  page_->evaluate("byId('document').value = 'the river'");
  page_->evaluate("byId('budget-a').value = 'nonsense'; byId('send').click(); until(() => !byId('send').disabled)");
  EXPECT_THAT(page_->evaluate("byId('status').textContent").get<std::string>(), HasSubstr("nonsense"));
  page_->evaluate(
      "byId('key').value = 'wrong'; byId('budget-a').value = ''; byId('send').click(); "
      "until(() => !byId('send').disabled && byId('status').textContent.includes('key'))");
}

}  // namespace
}  // namespace glimpse::server
