#include "glimpse/cli/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/cli/position_list.h"
#include "glimpse/plan/words.h"

namespace glimpse::cli {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostCount = 1 << 20;  // of layers, heads and dimensions
constexpr std::int64_t kMostTokens = 1 << 30;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;
constexpr std::string_view kHeaderStart = "{\"kind\":\"header\"", kOldStart = "{\"step\":";

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path, std::ios::binary) {
    if (!file_) throw UserError(fmt::format("cannot read '{}': {}", path, std::strerror(errno)));
  }

  Trace read() {
    read_header();
    for (std::string line; next(line);) {
      const std::string kind = this->kind();
      if (ended_) refuse("something follows the end");
      if (kind == "token") {
        read_token();
      } else if (kind == "step") {
        read_step();
      } else if (kind == "end") {
        read_end();
      } else if (kind.empty()) {
        read_head();
      } else {
        refuse(fmt::format("unknown kind '{}'", excerpt(kind)));
      }
    }
    if (!ended_) {
      throw UserError(
          fmt::format("the trace '{}' ends early, after line {}: it was cut off, or the run that wrote it did not "
                      "finish; write it again",
                      path_, number_));
    }
    return std::move(trace_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw UserError(fmt::format("line {} of the trace '{}': {}", number_, path_, what));
  }

  bool next(std::string& line) {
    if (!std::getline(file_, line)) {
      if (file_.bad()) throw UserError(fmt::format("cannot read '{}': {}", path_, std::strerror(errno)));
      return false;
    }
    ++number_;
    json_ = Json::parse(line, nullptr, false);
    if (!json_.is_object()) refuse("not a JSON object; the trace is damaged or was cut off");
    return true;
  }

  std::string kind() const { return json_.contains("kind") ? text(json_, "kind") : ""; }

  std::string text(const Json& json, const char* key) const {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_string()) refuse(fmt::format("'{}' is not a text", key));
    return found->get<std::string>();
  }

  std::int64_t integer(const Json& json, const char* key, std::int64_t low, std::int64_t high) const {
    const auto found = json.find(key);
    const bool there = found != json.end() && found->is_number_integer();
    const bool fits = there && !(found->is_number_unsigned() &&
                                 found->get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max());
    const std::int64_t value = fits ? found->get<std::int64_t>() : low - 1;
    if (value < low || value > high) {
      refuse(fmt::format("'{}' is not a whole number from {} to {}", key, low, high));
    }
    return value;
  }

  void read_header() {
    std::string line;
    if (!next(line) || kind() != "header") {
      throw UserError(
          fmt::format("'{}' is a trace without a header, of an earlier version; write it again with 'glimpse run "
                      "--trace' or 'glimpse eval sets'",
                      path_));
    }
    if (integer(json_, "version", 1, kMostCount) != 1) {
      refuse("a version of traces that this program does not know; write it again, or take a newer glimpse");
    }
    trace_.source = text(json_, "source");
    trace_.policy = text(json_, "policy");
    if (json_.contains("budget") && !json_["budget"].is_null()) trace_.budget = text(json_, "budget");
    trace_.kv_type = text(json_, "kv_type");
    trace_.row_bytes = integer(json_, "row_bytes", 1, kMostBytes);
    trace_.prompt_tokens = integer(json_, "prompt_tokens", 1, kMostTokens);
    const Json model = json_.contains("model") ? json_["model"] : Json();
    if (!model.is_object()) refuse("'model' is not an object");
    plan::ModelShape& shape = trace_.shape;
    shape.architecture = text(model, "architecture");
    shape.model_name = text(model, "name");
    const auto count = [&](const char* key) { return static_cast<int>(integer(model, key, 1, kMostCount)); };
    shape.layers = count("layers");
    shape.heads = count("heads");
    shape.kv_heads = count("kv_heads");
    shape.head_dim = count("head_dim");
    heads_ = static_cast<std::size_t>(shape.layers) * static_cast<std::size_t>(shape.kv_heads);
  }

  void read_token() {
    if (!step_.heads.empty()) refuse("a token in the middle of a step");
    const auto position = static_cast<std::int64_t>(trace_.tokens.size());
    if (integer(json_, "position", 0, kMostTokens) != position) {
      refuse(fmt::format("the token's position is not {}", position));
    }
    trace_.tokens.push_back(text(json_, "text"));
  }

  std::optional<double> coverage() const {
    const auto found = json_.find("coverage");
    if (found == json_.end() || found->is_null()) return std::nullopt;
    const double value = found->is_number() ? found->get<double>() : -1;
    if (!(value >= 0 && value <= 1)) refuse("'coverage' is not a number from 0 to 1");
    return value;
  }

  std::int32_t list_of(const Json& tokens, std::int64_t position) {
    positions_.clear();
    for (const Json& token : tokens) {
      const std::int64_t value = token.is_number_integer() ? token.get<std::int64_t>() : -1;
      if (value < 0 || value > position || (!positions_.empty() && value <= positions_.back())) {
        refuse(fmt::format("'tokens' are not ascending positions from 0 to {}", position));
      }
      positions_.push_back(static_cast<std::int32_t>(value));
    }
    std::string list = encode_positions(positions_);
    const auto [known, is_new] = lists_.emplace(list, static_cast<std::int32_t>(trace_.lists.size()));
    if (is_new) trace_.lists.push_back(std::move(list));
    return known->second;
  }

  void read_head() {
    const auto tokens = static_cast<std::int64_t>(trace_.tokens.size());
    if (tokens <= trace_.prompt_tokens) refuse("a set before the first generated token");
    const std::size_t at = step_.heads.size();
    if (at == heads_) refuse("more sets in a step than layers and KV heads");
    const auto kv_heads = static_cast<std::size_t>(trace_.shape.kv_heads);
    const std::pair<const char*, std::int64_t> places[] = {{"step", static_cast<std::int64_t>(trace_.steps.size())},
                                                           {"position", tokens - 1},
                                                           {"layer", static_cast<std::int64_t>(at / kv_heads)},
                                                           {"kv_head", static_cast<std::int64_t>(at % kv_heads)}};
    for (const auto& [key, expected] : places) {
      if (integer(json_, key, 0, kMostTokens) != expected) refuse(fmt::format("'{}' is not {}", key, expected));
    }
    step_.position = tokens - 1;
    TraceHead head;
    const std::string role = text(json_, "role");
    const auto& words = plan::kWords<plan::RoleKind>;
    const auto word = std::find(words.begin(), words.end(), role);
    if (word == words.end()) refuse(fmt::format("unknown role '{}'", excerpt(role)));
    head.role = static_cast<plan::RoleKind>(word - words.begin());
    head.coverage = coverage();
    head.tokens = tokens;
    const auto read = json_.find("tokens");
    if (read == json_.end() || !(read->is_null() || read->is_array())) refuse("'tokens' is neither a list nor null");
    if (read->is_array()) {
      head.list = list_of(*read, step_.position);
      head.tokens = static_cast<std::int64_t>(read->size());
    }
    step_.heads.push_back(head);
  }

  void read_step() {
    if (step_.heads.size() != heads_) {
      refuse(fmt::format("the step has {} of {} sets, one for each layer and KV head", step_.heads.size(), heads_));
    }
    const auto count = static_cast<std::int64_t>(trace_.steps.size());
    if (integer(json_, "step", 0, kMostTokens) != count) refuse(fmt::format("'step' is not {}", count));
    step_.bytes_read = integer(json_, "bytes_read", 0, kMostBytes);
    step_.index_bytes = integer(json_, "index_bytes", 0, kMostBytes);
    step_.dense_bytes = integer(json_, "dense_bytes", 0, kMostBytes);
    trace_.steps.push_back(std::move(step_));
    step_ = {};
  }

  void read_end() {
    const auto count = static_cast<std::int64_t>(trace_.steps.size());
    if (!step_.heads.empty()) refuse("the end in the middle of a step");
    if (static_cast<std::int64_t>(trace_.tokens.size()) < trace_.prompt_tokens) {
      refuse(fmt::format("the end after {} of {} tokens of the prompt", trace_.tokens.size(), trace_.prompt_tokens));
    }
    if (integer(json_, "steps", 0, kMostTokens) != count) refuse(fmt::format("'steps' is not {}", count));
    ended_ = true;
  }

  const std::string& path_;
  std::ifstream file_;
  std::int64_t number_ = 0;
  Json json_;
  Trace trace_;
  TraceStep step_;  ///< that is being read
  std::size_t heads_ = 0;
  bool ended_ = false;
  std::vector<std::int32_t> positions_;
  std::unordered_map<std::string, std::int32_t> lists_;
};

}  // namespace

bool looks_like_trace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string start(kHeaderStart.size(), '\0');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<std::size_t>(file.gcount()));
  return start.starts_with(kHeaderStart) || start.starts_with(kOldStart);
}

Trace read_trace(const std::string& path) {
  return Reader(path).read();
}

}  // namespace glimpse::cli
