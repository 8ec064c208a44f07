// The page of a trace: its data by a decoder of the test's own, and what a browser shows of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "glimpse/cli/position_list.h"
#include "glimpse/plan/profile.h"
#include "tests/cli/browser.h"
#include "tests/cli/process.h"
#include "tests/cli/trace_lines.h"

namespace glimpse::cli {
namespace {

using Json = nlohmann::json;

const std::string kHostile = "</script><script>document.title='broken'</script><!--<script> <b>bold</b> &amp; \"x\" ";

/// By the words of position_list.h alone.
std::vector<int> decode(const std::string& bytes) {
  std::size_t at = 0, runs = 0;
  for (unsigned shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.at(at++));
    runs |= static_cast<std::size_t>(byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  const auto parameters = static_cast<unsigned char>(bytes.at(at++));
  std::string bits;
  for (; at < bytes.size(); ++at) {
    for (int i = 7; i >= 0; --i) bits += (static_cast<unsigned char>(bytes[at]) >> i & 1) != 0 ? '1' : '0';
  }
  std::size_t bit = 0;
  const auto rice = [&](int low) {
    int value = 0;
    while (bits.at(bit++) == '1') ++value;
    for (; low > 0; --low) value = 2 * value + (bits.at(bit++) - '0');
    return value;
  };
  std::vector<int> positions;
  int end = 0;
  for (; runs > 0; --runs) {
    int position = end + rice(parameters >> 4);
    end = position + 1 + rice(parameters & 15);
    while (position < end) positions.push_back(position++);
  }
  return positions;
}

std::string from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned held = 0, bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    held = held << 6 | static_cast<unsigned>(digits.find(c));
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(held >> bits & 0xff);
  }
  return bytes;
}

TEST(PositionList, ComesBackFromItsBytes) {
  std::mt19937 random(3);
  std::size_t most = 0;
  for (int i = 0; i < 200; ++i) {
    const int context = 1 + static_cast<int>(random() % 40000);
    const double share = std::pow(0.5, static_cast<double>(random() % 12));
    const int sink = static_cast<int>(random() % 20);
    std::vector<std::int32_t> positions;
    for (int p = 0; p < context; ++p) {
      if (p < sink || static_cast<double>(random() % 100000) < 1e5 * share) positions.push_back(p);
    }
    const std::string bytes = encode_positions(positions);
    EXPECT_EQ(decode(bytes), positions);
    EXPECT_EQ(from_base64(base64(bytes)), bytes);
    most = std::max(most, bytes.size());
  }
  // A set of n from N has at most log2 of N over n bits to say: N bits, where n is half of N.
  EXPECT_LT(most, 40000 / 8 * 3 / 2);
  EXPECT_EQ(decode(encode_positions(std::vector<std::int32_t>{0})), std::vector<int>{0});
  EXPECT_EQ(decode(encode_positions({})), std::vector<int>());
}

/// What stands inside the page's one data element, as the page's own JSON.parse reads it.
Json data_of(const std::string& page) {
  const std::string start = "<script id=\"trace\" type=\"application/json\">";
  const std::size_t begin = page.find(start) + start.size();
  return Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

class Picture : public ::testing::Test {
 protected:
  /// A text with tags in the prompt and in what comes after it.
  void make(const std::vector<std::string>& more) {
    std::vector<std::string> words{"--attn", "tidal", "--attn-budget", "24", "--steps", "6"};
    words.insert(words.end(), more.begin(), more.end());
    const auto path = traced_sets(prose(4) + kHostile + prose(6) + kHostile, words);
    trace_ = trace_lines(path);
    page_ = scratch("page.html");
    const Outcome outcome = run_program({"inspect", path, "--html", page_});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  }
  std::set<int> tokens(const Json& line) const {
    std::set<int> all;
    if (line["tokens"].is_array()) return line["tokens"].get<std::set<int>>();
    for (int p = 0; p <= line["position"].get<int>(); ++p) all.insert(p);
    return all;
  }
  TraceLines trace_;
  std::filesystem::path page_;
};

TEST_F(Picture, HoldsTheTraceAndNeedsNothingElse) {
  make({});
  const std::string page = read_file(page_);
  EXPECT_EQ(count(page, "</script"), 2u) << "the data's and the program's own";
  EXPECT_EQ(count(page, "<script"), 2u);
  EXPECT_EQ(count(page, "@data@") + count(page, "@css@") + count(page, "@js@"), 0u);
  for (const char* outside : {"http:", "https:", "src=", "href=", "url(", "@import", "fetch(", "XMLHttp"}) {
    EXPECT_EQ(count(page, outside), 0u) << outside;
  }
  const Json data = data_of(page);
  ASSERT_EQ(data["tokens"].size(), trace_.tokens.size());
  for (std::size_t i = 0; i < trace_.tokens.size(); ++i) EXPECT_EQ(data["tokens"][i], trace_.tokens[i]["text"]);
  std::vector<std::string> lists;
  const std::string bytes = from_base64(data["lists"]);
  std::size_t at = 0;
  for (const Json& size : data["sizes"]) {
    lists.push_back(bytes.substr(at, size));
    at += size.get<std::size_t>();
  }
  EXPECT_EQ(at, bytes.size());
  EXPECT_EQ(std::set<std::string>(lists.begin(), lists.end()).size(), lists.size()) << "each set is there once";
  ASSERT_EQ(data["steps"].size(), 6u);
  const std::size_t heads = trace_.sets.size() / 6;
  for (std::size_t i = 0; i < trace_.sets.size(); ++i) {
    const Json& line = trace_.sets[i];
    const Json& step = data["steps"][i / heads];
    const int list = step["lists"][i % heads];
    EXPECT_EQ(list < 0, line["tokens"].is_null());
    if (list >= 0) {
      EXPECT_EQ(Json(decode(lists.at(static_cast<std::size_t>(list)))), line["tokens"]);
    }
    EXPECT_NEAR(step["coverage"][i % heads], line["coverage"], 5e-5);
    EXPECT_EQ(step["position"], line["position"]);
    EXPECT_EQ(step["read"], trace_.steps[i / heads]["bytes_read"]);
    EXPECT_EQ(step["dense"], trace_.steps[i / heads]["dense_bytes"]);
  }
}

/// What the page shows, as its document has it, for the tests below.
const std::string kLook = R"(
const at = (id) => document.getElementById(id);
const press = (key) => document.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
const look = () => ({
  token: document.querySelectorAll('#answer .token.now').length === 1
             ? Number(document.querySelector('#answer .token.now').dataset.token) : -1,
  slider: Number(at('slider').value),
  chosen: at('chosen').textContent,
  bytes: at('bytes').textContent,
  layers: [...document.querySelectorAll('#layers .layer')].map(
      (row) => ({read: row.dataset.read, coverage: row.dataset.coverage, text: row.textContent})),
  where: at('where').textContent,
  context: [...document.querySelectorAll('#context span')].map((span) => span.textContent),
  here: [...document.querySelectorAll('#context .here')].map((span) => span.textContent),
});
const move = (type, position, row, heads) => {
  const plot = at('plot'), box = at('heat').getBoundingClientRect(), span = SPAN;
  const layer = document.querySelectorAll('#layers .layer')[Math.floor(row / heads)];
  plot.dispatchEvent(new PointerEvent(type, {bubbles: true, pointerId: 1,
      clientX: box.left + (position + 0.5) / span * box.width,
      clientY: box.top + layer.offsetTop + (row % heads + 0.5) * layer.offsetHeight / heads}));
};
at('plot').setPointerCapture = () => {};  // made events have no pointer to capture
)";

std::string look_at(std::size_t positions) {
  std::string script = kLook;
  script.replace(script.find("SPAN"), 4, std::to_string(positions));
  return script;
}

TEST_F(Picture, ABrowserShowsTheSetsOfTheChosenToken) {
  const auto browser = find_browser();
  if (!browser) GTEST_SKIP() << "no chromium or chrome in PATH; scripts/install-packages --browser installs one";
  make({});
  const auto prompt = trace_.header["prompt_tokens"].get<std::size_t>();
  const std::size_t positions = prompt + 6, heads = trace_.sets.size() / 6;
  const Json seen = ask_page(*browser, page_,
                             look_at(positions) + R"(
result.ready = document.body.dataset.ready;
result.title = document.title;
result.answer = [...document.querySelectorAll('#answer .token')].map((token) => token.textContent);
result.bold = document.querySelectorAll('b b, #answer b, #context b').length;
result.start = look();
press('End'); result.end = look();
press('ArrowRight'); result.beyond = look();
press('ArrowLeft'); press('ArrowLeft'); result.left = look();
press('Home'); result.home = look();
document.querySelectorAll('#answer .token')[3].click(); result.third = look();
at('slider').value = 5; at('slider').dispatchEvent(new Event('input')); result.fifth = look();
move('pointermove', 40, 6, 2); result.moved = look();
move('pointerdown', 41, 7, 2); move('pointerup', 41, 7, 2); result.held = look();
move('pointermove', 90, 0, 2); result.stays = look();
press('Escape'); result.freed = look();
const canvas = at('heat'), pixels = canvas.getContext('2d');
result.width = canvas.width;
result.map = [];
for (const row of document.querySelectorAll('#layers .layer')) {
  for (let head = 0; head < 2; ++head) {
    const y = Math.floor(row.offsetTop + (head + 0.5) * row.offsetHeight / 2);
    let cells = '';
    for (let p = 0; p < )" + std::to_string(positions) +
                                 R"(; ++p) {
      const x = Math.floor((p + 0.5) / )" +
                                 std::to_string(positions) + R"( * canvas.width);
      const [r, g, b] = pixels.getImageData(x, y, 1, 1).data;
      cells += r === 255 && g === 255 && b === 255 ? '.' : b > r + 20 ? '#' : 'o';
    }
    result.map.push(cells);
  }
}
)");
  EXPECT_EQ(seen["ready"], "true");
  EXPECT_EQ(seen["title"], "glimpse: what tidal read");
  EXPECT_EQ(seen["bold"], 0) << "tags of the text are text";
  std::string answer, given;
  ASSERT_EQ(seen["answer"].size(), 7u);
  for (std::size_t i = 0; i < 7; ++i) {
    answer += seen["answer"][i].get<std::string>();
    given += prompt + i < trace_.tokens.size() ? trace_.tokens[prompt + i]["text"].get<std::string>() : "∎";
  }
  EXPECT_EQ(answer, given);

  const auto token = [&](const char* when) { return std::pair<Json, Json>(seen[when]["token"], seen[when]["slider"]); };
  EXPECT_EQ(token("start"), (std::pair<Json, Json>(1, 1)));
  EXPECT_EQ(token("end"), (std::pair<Json, Json>(6, 6)));
  EXPECT_EQ(seen["beyond"], seen["end"]);
  EXPECT_EQ(token("left"), (std::pair<Json, Json>(4, 4)));
  EXPECT_EQ(token("home"), (std::pair<Json, Json>(0, 0)));
  EXPECT_NE(seen["home"]["chosen"].get<std::string>().find("prefill"), std::string::npos);
  EXPECT_EQ(token("third"), (std::pair<Json, Json>(3, 3)));
  EXPECT_EQ(token("fifth"), (std::pair<Json, Json>(5, 5)));

  // Token 5 was written by step 4.
  for (int layer = 0; layer < 4; ++layer) {
    double read = 0, coverage = 0;
    for (int head = 0; head < 2; ++head) {
      const Json& line = trace_.sets[4 * heads + static_cast<std::size_t>(2 * layer + head)];
      read += static_cast<double>(tokens(line).size()) / (line["position"].get<double>() + 1) / 2;
      coverage += line["coverage"].get<double>() / 2;
    }
    const Json& row = seen["fifth"]["layers"][static_cast<std::size_t>(layer)];
    EXPECT_NEAR(std::stod(row["read"].get<std::string>()), read, 1e-6);
    EXPECT_NEAR(std::stod(row["coverage"].get<std::string>()), coverage, 2e-4);
  }
  const auto bytes = [&](const char* key) { return trace_.steps[4][key].get<double>() / 1000; };
  char both[64];
  std::snprintf(both, sizeof both, "%.2f KB of %.2f KB", bytes("bytes_read"), bytes("dense_bytes"));
  EXPECT_NE(seen["fifth"]["bytes"].get<std::string>().find(both), std::string::npos) << seen["fifth"]["bytes"];

  // The text under the cursor.
  const auto text = [&](std::size_t position) { return trace_.tokens[position]["text"].get<std::string>(); };
  const auto where = [&](const char* when) { return seen[when]["where"].get<std::string>(); };
  EXPECT_EQ(seen["moved"]["here"], Json({text(40)}));
  EXPECT_NE(where("moved").find("Position 40"), std::string::npos) << where("moved");
  EXPECT_NE(where("moved").find("Layer 3, KV head 0 (reuse) read 24 of"), std::string::npos) << where("moved");
  const bool in_set = tokens(trace_.sets[4 * heads + 6]).contains(40);
  EXPECT_NE(where("moved").find(in_set ? "this one too" : "not this one"), std::string::npos) << where("moved");
  std::string around;
  for (const Json& part : seen["moved"]["context"]) around += part.get<std::string>();
  std::string expected;
  for (std::size_t p = 0; p < std::min(trace_.tokens.size(), std::size_t{111}); ++p) expected += text(p);
  EXPECT_EQ(around, expected);
  EXPECT_EQ(seen["held"]["here"], Json({text(41)}));
  EXPECT_EQ(seen["stays"], seen["held"]);
  // Without a cursor: where most sets meet. The sets of this plan are those of layer 3.
  std::map<int, int> readers;
  for (std::size_t head = 6; head < 8; ++head) {
    for (const int p : tokens(trace_.sets[4 * heads + head])) ++readers[p];
  }
  std::size_t most = 0;
  for (std::size_t p = 0; p < prompt; ++p) {
    if (readers[static_cast<int>(p)] > readers[static_cast<int>(most)]) most = p;
  }
  EXPECT_NE(where("freed").find("Position " + std::to_string(most)), std::string::npos) << where("freed");
  EXPECT_EQ(seen["freed"]["here"], Json({text(most)}));

  // Every cell of the map.
  ASSERT_GT(seen["width"], 2 * positions) << "a token has some pixels, so that its middle is its own";
  ASSERT_EQ(seen["map"].size(), heads);
  for (std::size_t row = 0; row < heads; ++row) {
    const Json& line = trace_.sets[4 * heads + row];
    const std::set<int> read = tokens(line);
    std::string cells;
    for (std::size_t p = 0; p < positions; ++p) {
      cells += !read.contains(static_cast<int>(p)) ? '.' : line["tokens"].is_null() ? 'o' : '#';
    }
    EXPECT_EQ(seen["map"][row], cells) << "row " << row;
  }
}

TEST_F(Picture, ATraceWithoutCoverageOrStepsIsShownToo) {
  const auto browser = find_browser();
  if (!browser) GTEST_SKIP() << "no chromium or chrome in PATH; scripts/install-packages --browser installs one";
  const auto path = scratch("run.jsonl"), page = scratch("page.html");
  for (const char* predict : {"1", "4"}) {
    ASSERT_EQ(run_program(run_words({"-p", "the river " + kHostile, "-n", predict, "--attn", "quest", "--attn-budget",
                                     "48", "--trace", path.string()}))
                  .code,
              0);
    EXPECT_EQ(run_program({"inspect", path, "--html", page}).code, 0);
    const Json seen = ask_page(*browser, page,
                               look_at(10) +
                                   "result.ready = document.body.dataset.ready;\n"
                                   "result.look = look();");
    ASSERT_TRUE(seen.contains("look"));
    EXPECT_EQ(seen["ready"], "true") << predict;
    const std::string chosen = seen["look"]["chosen"];
    EXPECT_NE(chosen.find(*predict == '1' ? "prefill" : "eval sets"), std::string::npos) << chosen;
    for (const Json& row : seen["look"]["layers"]) {
      EXPECT_EQ(row["text"].get<std::string>().ends_with("–"), *predict != '1') << row;
    }
  }
}

/// A profile with every part, whose texts would end its script and make markup; 4 layers, 6 query and 2 KV heads.
plan::Profile hostile_profile() {
  plan::Profile profile;
  profile.model = {"llama", kHostile, 4, 6, 2, 32, 0};
  profile.fingerprint = 0xabcd;
  profile.kascade = plan::KascadeProfile{{0, 2}, {0, 1, 1, 0, 0, 1, 1, 1}, {0.5, 0.75, 0.875, 1}, {}};
  profile.kascade->similarity = {1, 0.5, 0, 0, 0, 1, 0.5, 0, 0, 0, 1, 0.5, 0, 0, 0, 1};
  profile.tidal = plan::TidalProfile{3};
  profile.lessismore = plan::LessIsMoreProfile{2};
  profile.omnikv = plan::OmniKvProfile{{1, 3}};
  profile.retrieval = plan::RetrievalProfile{std::vector<double>(24, 0)};
  profile.retrieval->scores[9] = 1;
  profile.retrieval->scores[22] = 0.5;
  profile.roles = plan::RolesProfile{{0, 0.25, 0, 0, 0, 1, 0, 0}};
  profile.kept = {{"tidal", "512", "needle", 0.75, 1, 0.0625, 0.875},
                  {"<b>x</b>", "10%", "</script>", 0, 1, 3, 0, {}, "", 6, true}};
  profile.speed = plan::SpeedProfile{"<b>P</b>", 1, "bf16", 2000, {4, 2}, {8, 4}, {{"<b>x</b>", "10%", "a=b", {4, 1}}}};
  return profile;
}

TEST(ProfilePage, HoldsTheProfileAndNeedsNothingElse) {
  const auto path = scratch("profile.json"), written = scratch("page.html");
  write_file(path, plan::to_json(hostile_profile()));
  const Outcome outcome = run_program({"inspect", path.string(), "--html", written.string()});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("tidal      layer 3 selects again"), std::string::npos) << outcome.out;
  const std::string page = read_file(written);
  EXPECT_EQ(count(page, "</script"), 2u) << "the data's and the program's own";
  EXPECT_EQ(count(page, "<script"), 2u);
  EXPECT_EQ(count(page, "@data@") + count(page, "@base@") + count(page, "@css@") + count(page, "@js@"), 0u);
  for (const char* outside : {"http:", "https:", "src=", "href=", "url(", "@import", "fetch(", "XMLHttp"}) {
    EXPECT_EQ(count(page, outside), 0u) << outside;
  }
  const std::string start = "<script id=\"profile\" type=\"application/json\">";
  const std::size_t begin = page.find(start) + start.size();
  const Json data = Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  const plan::Profile profile = hostile_profile();
  EXPECT_EQ(data["model"], kHostile);
  EXPECT_EQ(data["fingerprint"], "000000000000abcd");
  ASSERT_EQ(data["maps"].size(), 3u);
  EXPECT_EQ(data["maps"][0]["values"], Json(profile.kascade->similarity));
  EXPECT_EQ(data["maps"][1]["values"], Json(profile.retrieval->scores));
  EXPECT_EQ(data["maps"][2]["values"], Json(profile.roles->probability));
  EXPECT_EQ(data["chosen"], Json::parse(R"({"kascade":[0,2],"tidal":[3],"lessismore":[2],"omnikv":[1,3]})"));
  EXPECT_EQ(data["headMap"], Json(profile.kascade->head_map));
  EXPECT_EQ(data["objective"], Json(profile.kascade->objective));
  EXPECT_EQ(data["kept"][0], Json::parse(R"(["tidal","512","needle",0.75,1.0,0.0625,0.875,""])"));
  EXPECT_EQ(data["kept"][1].back(), "6, left out");
  EXPECT_EQ(data["speed"]["processor"], "<b>P</b>");
  EXPECT_EQ(data["speed"]["rows"], Json::parse(R"([["full","",4.0,2.0,8.0],["verification of 4 drafts","",8.0,4.0,16.0],
      ["<b>x</b>,a=b","10%",4.0,1.0,6.0]])"));

  const Outcome plan = run_program({"plan", "-m", model(), "--attn", "tidal", "--json"});
  write_file(path, plan.out);
  const Outcome refused = run_program({"inspect", path.string(), "--html", written.string()});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("is no trace and no profile"), std::string::npos) << refused.err;
}

TEST(ProfilePage, ABrowserShowsItsHeatLayersAndTable) {
  const auto browser = find_browser();
  if (!browser) GTEST_SKIP() << "no chromium or chrome in PATH; scripts/install-packages --browser installs one";
  const auto path = scratch("profile.json"), page = scratch("page.html");
  write_file(path, plan::to_json(hostile_profile()));
  ASSERT_EQ(run_program({"inspect", path.string(), "--html", page.string()}).code, 0);
  const Json seen = ask_page(*browser, page, R"(
result.ready = document.body.dataset.ready;
result.bold = document.querySelectorAll('td b').length;
result.chosen = [...document.querySelectorAll('#chosen tr')].map((row) => row.textContent);
result.moved = document.getElementById('moved').textContent;
result.kept = [...document.querySelectorAll('#kept tr')].map(
    (row) => [...row.children].map((cell) => cell.textContent).join('|'));
result.speed = [...document.querySelectorAll('#speed tr')].map(
    (row) => [...row.children].map((cell) => cell.textContent).join('|'));
result.machine = document.getElementById('machine').textContent;
result.objective = document.getElementById('objective-where').textContent;
result.heights = [...document.querySelectorAll('#objective circle')].map((dot) => Number(dot.getAttribute('cy')));
result.chosenDots = [...document.querySelectorAll('#objective circle')].map((dot) => dot.getAttribute('class'));
result.maps = [...document.querySelectorAll('.map')].map((map) => {
  const canvas = map.querySelector('canvas'), pixels = canvas.getContext('2d'), rows = [];
  const columns = Math.round(canvas.width / 16);
  for (let layer = 0; layer < 4; ++layer) {
    let cells = '';
    for (let column = 0; column < columns; ++column) {
      const [r, g, b] = pixels.getImageData(16 * column + 8, 12 * layer + 6, 1, 1).data;
      cells += r === 255 && g === 255 && b === 255 ? '.' : r === 25 && g === 90 && b === 170 ? '#' : 'o';
    }
    rows.push(cells);
  }
  return rows;
});
result.marks = [...document.querySelectorAll('.map')][0].querySelector('.marks').innerText.split('\n');
const where = document.querySelectorAll('.where')[1], canvas = document.querySelectorAll('canvas')[1];
result.rest = where.textContent;
const box = canvas.getBoundingClientRect();
canvas.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + 1 + 16 * 4 + 8, clientY: box.top + 1 + 12 * 3 + 6}));
result.where = where.textContent;
)");
  ASSERT_TRUE(seen.contains("where"));
  EXPECT_EQ(seen["ready"], "true");
  EXPECT_EQ(seen["bold"], 0) << "tags of the profile are text";
  EXPECT_EQ(seen["chosen"], Json::parse(R"(["kascadeanchorslayers 0, 2","tidalselects againlayer 3",
      "lessismoreselects againlayer 2","omnikvfilterslayers 1, 3"])"));
  EXPECT_EQ(seen["moved"], "kascade: 3 of 8 KV heads read the set of another head of their anchor");
  ASSERT_EQ(seen["kept"].size(), 3u);
  EXPECT_EQ(seen["kept"][1], "tidal|512|needle|75.0 %|100.0 %|0.0625|0.8750|");
  EXPECT_EQ(seen["kept"][2], "<b>x</b>|10%|</script>|0.0 %|100.0 %|3.0000|0.0000|6, left out");
  ASSERT_EQ(seen["speed"].size(), 4u);
  EXPECT_EQ(seen["speed"][0], "method|budget|fixed|per 1,000|at 2000");
  EXPECT_EQ(seen["speed"][1], "full||4.00|2.000|8.00");
  EXPECT_EQ(seen["speed"][3], "<b>x</b>,a=b|10%|4.00|1.000|6.00");
  EXPECT_EQ(seen["machine"].get<std::string>().rfind("Milliseconds on <b>P</b>, 1 thread, bf16 cache", 0), 0u);
  EXPECT_EQ(seen["objective"], "2 anchors: 0.750");
  ASSERT_EQ(seen["heights"].size(), 4u);
  const double low = seen["heights"][0], high = seen["heights"][3];
  EXPECT_NEAR(seen["heights"][1].get<double>(), (low + high) / 2, 1e-9) << "0.75 lies between 0.5 and 1";
  EXPECT_EQ(seen["chosenDots"], Json::parse(R"(["","chosen","",""])"));
  EXPECT_EQ(
      seen["maps"],
      Json::parse(R"([["#o..",".#o.","..#o","...#"],["......","...#..","......","....o."],[".o","..",".#",".."]])"));
  EXPECT_EQ(seen["rest"], "Largest: layer 1, query head 3: 1.000");
  EXPECT_EQ(seen["where"], "Layer 3, query head 4: 0.500");
  const Json marks = Json::parse(R"(["kascade","omnikv","kascade, lessismore","tidal, omnikv"])");
  EXPECT_EQ(seen["marks"], marks);
}

}  // namespace
}  // namespace glimpse::cli
