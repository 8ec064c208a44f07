// glimpse eval needle, ruler, copy and scoreboard: what they print, what is refused in one line, a run that goes on
// where another was, and the page in a browser.
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>

#include "glimpse/base/error.h"
#include "glimpse/cli/answer_file.h"
#include "glimpse/cli/picture.h"
#include "tests/cli/browser.h"
#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

using Json = nlohmann::json;

std::vector<std::string> words_of(const std::string& command, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"eval", command, "-m", model(), "-t", "1", "--lengths", "1024"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<std::string> board_words(const std::filesystem::path& folder, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"--arms",   "full,quest:64", "--tasks", "needle,copy",
                                 "--depths", "0,100",         "-o",      folder.string()};
  words.insert(words.end(), more.begin(), more.end());
  return words_of("scoreboard", words);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The rows of scoreboard.json without what a clock says.
Json rows_of(const std::filesystem::path& folder) {
  Json board = Json::parse(read_file(folder / "scoreboard.json"));
  const auto ms = std::find(board["columns"].begin(), board["columns"].end(), "ms") - board["columns"].begin();
  for (Json& row : board["rows"]) {
    EXPECT_EQ(row.size(), board["columns"].size());
    row[static_cast<std::size_t>(ms)] = nullptr;
  }
  return board["rows"];
}

TEST(EvalTasks, PrintATableOrJson) {
  const std::vector<std::string> arms{"--arms", "full,quest:64", "-n", "2"};
  const Outcome table = run_program(words_of("copy", arms));
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_EQ(table.err, "");
  const std::vector<std::string> lines = lines_of(table.out);
  ASSERT_EQ(lines.size(), 4u) << table.out;
  EXPECT_EQ(lines[0].rfind("| task | length | arm | answers % | 95 % | right | KL |", 0), 0u) << lines[0];
  EXPECT_EQ(lines[2].rfind("| copy | 1024 | full | 0.0 | 0.0 to 0.0 | 0/2 | 0.0000 | 100.0 | 100.0 |", 0), 0u)
      << lines[2];

  std::vector<std::string> words = words_of("ruler", arms);
  words.insert(words.end(), {"--tasks", "vt,qa", "--json", "-s", "4"});
  const Outcome json = run_program(words);
  ASSERT_EQ(json.code, 0) << json.err;
  const Json result = Json::parse(json.out);
  EXPECT_EQ(result["seed"], 4);
  ASSERT_EQ(result["rows"].size(), 6u) << "two tasks and all of them, two arms";
  for (const Json& row : result["rows"]) {
    const bool dense = row["arm"] == "full";
    EXPECT_EQ(row["asked"], row["task"] == "all" ? 4 : 2);
    EXPECT_EQ(row["kept_ratio"].get<double>() == 1, dense);
    EXPECT_EQ(row["agreement"].get<double>() == 1 && row["divergence"].get<double>() < 1e-5, dense);
  }
}

TEST(EvalTasks, RefuseInOneLine) {
  expect_refused(words_of("ruler", {"--tasks", "vt,fwee"}), "did you mean 'fwe'");
  expect_refused(words_of("ruler", {"--tasks", "vt,vt"}), "'vt' is given twice");
  expect_refused(words_of("copy", {"--arms", "full,full"}), "'full' is given twice");
  expect_refused(words_of("copy", {"--lengths", "100"}), "from 512 to");
  expect_refused(words_of("needle", {"--depths", "50,101"}), "from 0 to 100");
  expect_refused(words_of("passkey", {"--lengths", "600"}),
                 "--lengths 600, of which 192 are the answer's: a prompt of 408");
  expect_refused(words_of("copy", {"-n", "0"}), "--examples");
  expect_refused(words_of("copy", {"--arms", "tydal"}), "did you mean 'tidal'");
  expect_refused(words_of("scoreboard"), "give -o DIR");
  const auto folder = scratch("board");
  expect_refused(words_of("scoreboard", {"-o", folder.string(), "--tasks", "vt", "--depths", "50"}),
                 "without the task 'needle'");
  std::string lengths = "512";
  for (int i = 513; i < 2000; ++i) lengths += "," + std::to_string(i);
  expect_refused(words_of("scoreboard", {"-o", folder.string(), "--lengths", lengths}), "holds at most 2800");
  write_file(scratch("plain"), "x");
  expect_refused(words_of("scoreboard", {"-o", scratch("plain").string()}), "it is no folder");
}

TEST(Scoreboard, GoesOnWhereAnotherRunWas) {
  const auto whole = scratch("whole"), parts = scratch("parts");
  const Outcome once = run_program(board_words(whole, {"-n", "2"}));
  ASSERT_EQ(once.code, 0) << once.err;
  EXPECT_EQ(once.err, "");
  const Json wanted = rows_of(whole);
  ASSERT_EQ(wanted.size(), 8u) << "two depths, a task and their sum, two arms";
  const std::vector<std::string> lines = lines_of(read_file(whole / "answers.jsonl"));
  ASSERT_EQ(lines.size(), 1u + 2 * 3 * 2);
  EXPECT_NE(read_file(whole / "scoreboard.md").find("| copy | 1024 |"), std::string::npos);

  // First one prompt of each, then two; nothing is asked twice.
  ASSERT_EQ(run_program(board_words(parts, {"-n", "1"})).code, 0);
  const std::string first = read_file(parts / "answers.jsonl");
  EXPECT_EQ(lines_of(first).size(), 7u);
  const Outcome second = run_program(board_words(parts, {"-n", "2"}));
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_NE(second.err.find("going on with 6 answers"), std::string::npos) << second.err;
  EXPECT_EQ(read_file(parts / "answers.jsonl").rfind(first, 0), 0u);
  EXPECT_EQ(rows_of(parts), wanted);

  // A process that was killed while it wrote a line, or its first one.
  const std::string all = read_file(whole / "answers.jsonl");
  for (const std::size_t kept : {all.size() - 1, all.size() / 2, std::size_t{20}, std::size_t{0}}) {
    write_file(parts / "answers.jsonl", all.substr(0, kept));
    ASSERT_EQ(run_program(board_words(parts, {"-n", "2", "-q"})).code, 0) << kept;
    EXPECT_EQ(rows_of(parts), wanted) << kept;
    EXPECT_EQ(lines_of(read_file(parts / "answers.jsonl")).size(), lines.size()) << kept;
  }
  // An arm more is asked alone.
  const Outcome more = run_program(board_words(parts, {"-n", "2", "--arms", "full,quest:64,streaming:64"}));
  ASSERT_EQ(more.code, 0) << more.err;
  EXPECT_EQ(lines_of(read_file(parts / "answers.jsonl")).size(), lines.size() + 6);
}

TEST(Scoreboard, RefusesFilesOfSomethingElse) {
  const auto folder = scratch("board");
  ASSERT_EQ(run_program(board_words(folder, {"-n", "1"})).code, 0);
  const std::string good = read_file(folder / "answers.jsonl");
  expect_refused(board_words(folder, {"-s", "2"}), "another seed, 1, and this run has 2");
  expect_refused(board_words(folder, {"--kv-type", "f16"}), "another KV type, bf16, and this run has f16");
  std::vector<std::string> other = board_words(folder);
  std::replace(other.begin(), other.end(), model(), model("qwen3"));
  expect_refused(other, "another model");
  std::vector<std::string> lines = lines_of(good);
  write_file(folder / "answers.jsonl", lines[0] + "\n{\"task\":1}\n" + lines[1] + "\n");
  expect_refused(board_words(folder), "line 2 is broken");
  write_file(folder / "answers.jsonl", "a diary\nof mine\n");
  expect_refused(board_words(folder), "holds no answers");
  EXPECT_EQ(read_file(folder / "answers.jsonl"), "a diary\nof mine\n");
  for (const std::string text : {"a diary", "{\"glimpse_answers\":1,\"of\":\"mine\"}"}) {
    write_file(folder / "answers.jsonl", text);
    expect_refused(board_words(folder), "holds no answers");
    EXPECT_EQ(read_file(folder / "answers.jsonl"), text);
  }
  // An arm by another plan: as if the profile had been made anew.
  std::string planned = good;
  const std::size_t plan = planned.find("\"plan\":\"") + 8;
  planned.replace(plan, 4, planned.substr(plan, 4) == "0000" ? "1111" : "0000");
  write_file(folder / "answers.jsonl", planned);
  expect_refused(board_words(folder), "by another plan");
  write_file(folder / "answers.jsonl", good);
  const int file = ::open((folder / "answers.jsonl").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(file, LOCK_EX), 0);
  expect_refused(board_words(folder), "another process writes it");
  ::close(file);
}

TEST(Scoreboard, AFullDiskCutsNoLine) {
  const auto path = scratch("answers.jsonl");
  const evaluate::Answer answer{1, 1, 1, 0, 10, 20, 3, 0.5, 40, std::string(300, 'x')};
  const AnswerFile::Facts facts{{"model", "m"}, {"seed", "1"}};
  {
    AnswerFile file(path, facts);
    file.set_plan("a", 512, 7);
    file.add({"vt", 512, std::nullopt, 0, "a"}, answer);
    const auto size = std::filesystem::file_size(path);
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit small{size + 50, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    EXPECT_THROW(file.add({"vt", 512, std::nullopt, 1, "a"}, answer), UserError);
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(std::filesystem::file_size(path), size);
    EXPECT_EQ(file.answers().size(), 1u);
    file.add({"vt", 512, std::nullopt, 2, "a"}, answer);
  }
  AnswerFile again(path, facts);
  EXPECT_EQ(again.answers().size(), 2u);
  const auto& found = again.answers().all().at({"vt", 512, std::nullopt, 2, "a"});
  EXPECT_EQ(found.text, answer.text);
  EXPECT_EQ(found.step_s, 0.5);
  EXPECT_EQ(found.cache_bytes, 40);
}

const std::string kHostile = "</script><b>x</b>";

/// Two lengths; by time: b is slow and best, a fast and fair, c slower than a and worse.
std::string board() {
  Json board{
      {"schema", 1},
      {"commit", "abc"},
      {"date", "2026-01-01"},
      {"machine", {{"cpu", "a processor"}}},
      {"command", "glimpse eval scoreboard " + kHostile},
      {"model", kHostile},
      {"settings", {{"threads", 2}, {"kv_type", "bf16"}, {"examples", 4}, {"fingerprint", "00ff"}, {"complete", true}}},
      {"columns",
       {"task", "length", "depth", "arm", "asked", "right", "score", "low", "high", "dense", "divergence", "agreement",
        "kept_ratio", "bytes_per_token", "ms", "cache_bytes"}},
      {"rows", Json::array()}};
  const auto add = [&](const std::string& task, int length, const Json& depth, const std::string& arm, double score,
                       double ms) {
    board["rows"].push_back({task, length, depth, arm, 4, 2, score, score - 0.05, score + 0.05, 1, 0.25, 0.5, 0.125,
                             2e6, ms > 0 ? Json(ms) : Json(), 3e6});
  };
  for (const int length : {4096, 8192}) {
    add("needle", length, 0, "b", 1, 9);
    add("needle", length, 50, "b", length == 4096 ? 0.5 : 0, 9);
    add("vt", length, nullptr, "b", 1, 9);
    add("all", length, nullptr, "b", 0.95, 9);
    add("all", length, nullptr, "a", 0.5, 4);
    add("all", length, nullptr, "c" + kHostile, 0.25, 10);
    add("all", length, nullptr, "untimed", 0.9, 0);
  }
  return board.dump();
}

TEST(ScoreboardPage, HoldsTheBoardAndNeedsNothingElse) {
  const std::string page = scoreboard_page(board());
  const auto count = [&](const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = page.find(part); at != std::string::npos; at = page.find(part, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("</script"), 2u);
  EXPECT_EQ(count("<script"), 2u);
  EXPECT_EQ(count("@data@") + count("@base@") + count("@css@") + count("@js@"), 0u);
  EXPECT_EQ(count("default-src 'none'"), 1u);
  for (const char* outside : {"http:", "https:", "src=", "href=", "url(", "@import", "fetch(", "XMLHttp"}) {
    EXPECT_EQ(count(outside), 0u) << outside;
  }
}

TEST(ScoreboardPage, ABrowserSortsDrawsAndFilters) {
  const auto browser = find_browser();
  if (!browser) GTEST_SKIP() << "no chromium or chrome in PATH; scripts/install-packages --browser installs one";
  const auto page = scratch("board.html");
  write_file(page, scoreboard_page(board()));
  const Json seen = ask_page(*browser, page, R"(
const at = (id) => document.getElementById(id);
const column = (table, index) => [...at(table).querySelectorAll('tbody tr')].map((row) => row.children[index].textContent);
const head = (table, title) => [...at(table).querySelectorAll('th')].find((cell) => cell.textContent === title);
const press = (table, title) => head(table, title).querySelector('button').click();
const choose = (id, value) => { at(id).value = value; at(id).dispatchEvent(new Event('change')); };
result.ready = document.body.dataset.ready;
result.bold = document.querySelectorAll('b').length;
result.front = at('front').textContent;
result.start = column('overall', 0);
press('overall', 'answers'); result.best = column('overall', 0); result.sort = head('overall', 'answers').ariaSort;
press('overall', 'answers'); result.worst = column('overall', 0); result.turned = head('overall', 'answers').ariaSort;
press('overall', 'method'); result.names = column('overall', 0); result.left = head('overall', 'answers').ariaSort;
result.focus = (head('overall', 'KL').querySelector('button').focus(), document.activeElement.textContent);
result.first = [...at('overall').querySelectorAll('tbody tr')[0].children].map((cell) => cell.textContent);
choose('arm', 'b');
result.heat = [...at('heat').querySelectorAll('tr')].map((row) => [...row.children].map((cell) => cell.textContent));
result.colours = [...at('heat').querySelectorAll('td')].map((cell) => getComputedStyle(cell).backgroundColor);
result.all = column('tasks', 0);
choose('task', 'vt'); result.vt = column('tasks', 1);
const plot = at('plot'), pixels = plot.getContext('2d'), box = plot.getBoundingClientRect();
// By the words of the page: 0 to 1.08 times the slowest from left to right, 0 to 1 from the bottom up.
const x = 56 + (960 - 24 - 56) * 4 / 10.8, y = 376 - 356 * 0.5;
result.point = [...pixels.getImageData(Math.round(x), Math.round(y), 1, 1).data];
plot.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + 1 + x, clientY: box.top + 1 + y}));
result.where = at('where').textContent;
)");
  ASSERT_TRUE(seen.contains("where"));
  EXPECT_EQ(seen["ready"], "true");
  EXPECT_EQ(seen["bold"], 0) << "tags of the board are text";
  EXPECT_EQ(seen["front"], "Nothing is both faster and better than a, b.");
  const std::string c = "c" + kHostile;
  EXPECT_EQ(seen["start"], Json({"b", "a", c, "untimed"}));
  EXPECT_EQ(seen["best"], Json({"b", "untimed", "a", c}));
  EXPECT_EQ(seen["sort"], "descending");
  EXPECT_EQ(seen["worst"], Json({c, "a", "untimed", "b"}));
  EXPECT_EQ(seen["turned"], "ascending");
  EXPECT_EQ(seen["names"], Json({"a", "b", c, "untimed"}));
  EXPECT_EQ(seen["left"], "none");
  EXPECT_EQ(seen["focus"], "KL") << "the keyboard reaches the buttons";
  EXPECT_EQ(seen["first"],
            Json({"a", "50.0 %", "45 to 55", "100.0 %", "0.2500", "50.0 %", "12.5 %", "2.00", "4.00", "3.0"}));
  EXPECT_EQ(seen["heat"],
            Json::parse(R"([["depth","4096","8192"],["0 %","100.0 %","100.0 %"],["50 %","50.0 %","0.0 %"]])"));
  EXPECT_EQ(seen["colours"][0], "rgb(25, 90, 170)");
  EXPECT_EQ(seen["colours"][3], "rgb(255, 255, 255)");
  EXPECT_EQ(seen["all"].size(), 6u);
  EXPECT_EQ(seen["vt"], Json({"4096", "8192"}));
  EXPECT_EQ(seen["point"], Json({25, 90, 170, 255}));
  EXPECT_EQ(seen["where"], "a: 50.0 % at 4.00 ms a token, reads 12.5 %");
}

}  // namespace
}  // namespace glimpse::cli
