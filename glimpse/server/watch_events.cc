#include "glimpse/server/watch_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "glimpse/base/printable.h"
#include "glimpse/base/size.h"
#include "glimpse/plan/words.h"
#include "glimpse/server/answer_json.h"
#include "glimpse/server/api_error.h"
#include "glimpse/server/json.h"
#include "glimpse/server/watch_sets.h"

namespace glimpse::server {
namespace {

constexpr std::int64_t kPromptPiece = 4096;  ///< tokens of the prompt in an event
constexpr std::int64_t kTokenPiece = 256;    ///< of the answer between two looks at the length

Json number_or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json();
}

/// What both forms of a step begin with.
Json step_numbers(const WatchedStep& step) {
  return {{"kind", "step"},
          {"step", step.number},
          {"position", step.position},
          {"bytes_read", step.bytes_read},
          {"index_bytes", step.index_bytes},
          {"dense_bytes", step.dense_bytes},
          {"coverage_mean", number_or_null(step.coverage_mean)},
          {"coverage_min", number_or_null(step.coverage_min)}};
}

Json positions_of(const WatchedStep& step, std::int32_t list) {
  if (list < 0) return {};
  return unpack_positions(step.lists[static_cast<std::size_t>(list)]);
}

char letter(plan::RoleKind role) {
  constexpr std::string_view kLetters = "DSRW";  // as `glimpse plan` has them
  return kLetters[static_cast<std::size_t>(role)];
}

void add_item(std::string& list, std::string_view item) {
  if (!list.empty()) list += ',';
  list += item;
}

}  // namespace

ViewerWish viewer_wish(std::string_view target) {
  ViewerWish wish;
  const std::size_t question = target.find('?');
  if (question == std::string_view::npos) return wish;
  for (std::string_view rest = target.substr(question + 1); !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const std::size_t equals = part.find('=');
    const std::string_view name = part.substr(0, equals);
    const std::string_view text = equals == std::string_view::npos ? "" : part.substr(equals + 1);
    std::int64_t value = -1;
    const bool number = std::from_chars(text.data(), text.data() + text.size(), value).ptr == text.data() + text.size();
    if (name == "bins") {
      if (!number || value < ViewerWish::kFewestBins || value > ViewerWish::kMostBins) {
        throw bad_field("bins", fmt::format("is '{}'; it must be a whole number from {} to {}", excerpt(text),
                                            ViewerWish::kFewestBins, ViewerWish::kMostBins));
      }
      wish.bins = value;
    } else if (name == "from") {
      if (!number || value < 0) {
        throw bad_field("from", fmt::format("is '{}'; it must be the number of a step, from 0", excerpt(text)));
      }
      wish.from = value;
    } else {
      throw bad_field(excerpt(name), "is no part of this query; it takes 'bins' and 'from'");
    }
  }
  return wish;
}

Viewer::Viewer(std::string id, std::shared_ptr<const WatchRecord> record, ViewerWish wish)
    : id_(std::move(id)), record_(std::move(record)), wish_(wish), next_(wish.from) {}

std::string Viewer::header() const {
  const WatchedRequest& request = record_->request();
  const plan::ModelShape& shape = request.shape;
  return event_text(text_of({{"kind", "header"},
                             {"version", 1},
                             {"source", "serve"},
                             {"id", id_},
                             {"policy", request.policy},
                             {"budget", request.budget.empty() ? Json() : Json(request.budget)},
                             {"model",
                              {{"architecture", shape.architecture},
                               {"name", shape.model_name},
                               {"layers", shape.layers},
                               {"heads", shape.heads},
                               {"kv_heads", shape.kv_heads},
                               {"head_dim", shape.head_dim}}},
                             {"kv_type", request.kv_type},
                             {"row_bytes", request.row_bytes},
                             {"prompt_tokens", std::ssize(record_->prompt())},
                             {"bins", wish_.bins}}));
}

std::string Viewer::prompt() {
  const std::vector<WatchedToken>& tokens = record_->prompt();
  const std::int64_t end = std::min(std::ssize(tokens), prompt_sent_ + kPromptPiece);
  Json ids = Json::array(), texts = Json::array();
  for (std::int64_t i = prompt_sent_; i < end; ++i) {
    ids.push_back(tokens[static_cast<std::size_t>(i)].id);
    texts.push_back(tokens[static_cast<std::size_t>(i)].text);
  }
  return event_text(text_of({{"kind", "prompt"},
                             {"position", std::exchange(prompt_sent_, end)},
                             {"ids", std::move(ids)},
                             {"texts", std::move(texts)}}));
}

// Lists of a number for every head are written as text: a JSON value for each number takes longer than all the rest.
std::string Viewer::step(const WatchedStep& step) {
  const std::int64_t tokens = step.position + 1;
  const std::int64_t width = std::max(width_, bin_width(tokens, wish_.bins));
  const bool whole = width != width_;
  const auto bins = static_cast<std::size_t>((tokens + width - 1) / width);
  if (whole) cells_.assign(step.heads.size(), {});
  width_ = width;
  const std::string none(bins, '0');
  std::vector<std::string> digits(step.lists.size());
  std::vector<std::ptrdiff_t> shown(step.lists.size(), -1);  // the first row that reads a list
  std::string rows, read, coverage, roles;
  bool known = false;
  for (std::size_t row = 0; row < step.heads.size(); ++row) {
    const WatchedHead& head = step.heads[row];
    roles += letter(head.role);
    known = known || head.coverage.has_value();
    add_item(coverage, head.coverage && std::isfinite(*head.coverage) ? fmt::to_string(*head.coverage) : "null");
    add_item(read, head.tokens >= 0 ? fmt::format_int(head.count).c_str() : "null");
    const auto own = static_cast<std::ptrdiff_t>(row);
    std::ptrdiff_t source = own;
    const std::string* now = &none;
    if (head.tokens >= 0) {
      const auto list = static_cast<std::size_t>(head.tokens);
      if (digits[list].empty()) digits[list] = bin_digits(unpack_positions(step.lists[list]), tokens, width);
      now = &digits[list];
      if (shown[list] < 0) shown[list] = own;
      source = shown[list];
    }
    std::string& before = cells_[row];
    before.resize(bins, '0');
    if (*now == before) continue;
    if (source != own) {
      add_item(rows, fmt::format("[{},{}]", row, source));
    } else {
      const auto first = std::mismatch(now->begin(), now->end(), before.begin()).first - now->begin();
      const auto last = now->rend() - std::mismatch(now->rbegin(), now->rend(), before.rbegin()).first;
      const std::string_view part = std::string_view(*now).substr(size(first), size(last - first));
      add_item(rows, fmt::format("[{},{},\"{}\"]", row, first, part));
    }
    before = *now;
  }
  std::string json = text_of(step_numbers(step));
  json.pop_back();  // its last brace
  json += fmt::format(R"(,"coverage":{},"roles":"{}","read":[{}],"width":{},"whole":{},"rows":[{}]}})",
                      known ? "[" + coverage + "]" : "null", roles, read, width, whole, rows);
  return event_text(json);
}

std::string Viewer::events() {
  std::string out;
  if (ended_) return out;
  if (!std::exchange(began_, true)) out += header();
  const WatchRecord::Progress progress =
      record_->progress();  // before what it counts is read: there is as much, or more
  while (prompt_sent_ < std::ssize(record_->prompt()) && out.size() < kMost) out += prompt();
  const std::int64_t first = std::ssize(record_->prompt());
  while (tokens_sent_ < progress.tokens && out.size() < kMost) {
    for (const WatchedToken& token :
         record_->tokens(tokens_sent_, std::min(kTokenPiece, progress.tokens - tokens_sent_))) {
      out += event_text(
          text_of({{"kind", "token"}, {"position", first + tokens_sent_++}, {"id", token.id}, {"text", token.text}}));
    }
  }
  while (next_ < progress.steps && out.size() < kMost) {
    const std::shared_ptr<const WatchedStep> step = record_->step_at(next_);
    if (step == nullptr) {
      const std::int64_t kept = std::max(next_ + 1, record_->progress().first_step);
      out += event_text(text_of({{"kind", "lost"}, {"step", next_}, {"steps", kept - next_}}));
      lost_ += kept - next_;
      next_ = kept;
      continue;
    }
    out += this->step(*step);
    ++next_;
  }
  const bool all = prompt_sent_ == first && tokens_sent_ == progress.tokens && next_ >= progress.steps;
  if (all && progress.reason) {
    out += event_text(
        text_of({{"kind", "end"}, {"steps", progress.steps}, {"reason", *progress.reason}, {"lost", lost_}}));
    out += event_text("[DONE]");
    ended_ = true;
  }
  return out;
}

std::string step_json(const WatchedStep& step, const plan::ModelShape& shape) {
  Json heads = Json::array();
  for (std::size_t row = 0; row < step.heads.size(); ++row) {
    const WatchedHead& head = step.heads[row];
    const auto kv_heads = static_cast<std::size_t>(shape.kv_heads);
    Json line{{"step", step.number},
              {"position", step.position},
              {"layer", row / kv_heads},
              {"kv_head", row % kv_heads},
              {"role", plan::word(head.role)},
              {"budget", head.budget},
              {"tokens", positions_of(step, head.tokens)},
              {"published", head.published == WatchedHead::kAll ? Json("all") : positions_of(step, head.published)},
              {"coverage", number_or_null(head.coverage)}};
    if (!head.query_sets.empty()) {
      Json sets = Json::array();
      for (const std::int32_t list : head.query_sets) sets.push_back(positions_of(step, list));
      line["query_sets"] = std::move(sets);
    }
    heads.push_back(std::move(line));
  }
  Json json = step_numbers(step);
  json["heads"] = std::move(heads);
  return text_of(json);
}

}  // namespace glimpse::server
