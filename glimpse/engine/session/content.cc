#include "glimpse/engine/session/content.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "glimpse/base/error.h"

namespace glimpse::engine {
namespace {

using kernels::kPageTokens;

constexpr std::uint64_t kMostName = 1 << 16, kMostPlan = 1 << 26;
constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max() / 2;

std::int32_t used_pages(std::int64_t slots) {
  return static_cast<std::int32_t>((slots + kPageTokens - 1) / kPageTokens);
}

void write_about(const SavedSession& session, ByteWriter& to) {
  const plan::ModelShape& shape = session.model.shape;
  to.value(session.model.fingerprint);
  to.text(shape.architecture);
  to.text(shape.model_name);
  for (const int number : {shape.layers, shape.heads, shape.kv_heads, shape.head_dim, session.model.vocabulary}) {
    to.value(static_cast<std::int32_t>(number));
  }
  to.value(static_cast<std::uint8_t>(session.model.format.type));
  to.value(static_cast<std::int32_t>(kPageTokens));
  to.value(session.length());
  to.value(session.prompt_tokens);
  to.value(session.decode_steps);
  to.value(session.steps);
}

std::string describe(const plan::ModelShape& shape) {
  return fmt::format("'{}' ({}, {} layers, {} heads, {} KV heads of {})", shape.model_name, shape.architecture,
                     shape.layers, shape.heads, shape.kv_heads, shape.head_dim);
}

/// Checks whose it is, in the order in which a user can do something about it. Returns the number of tokens.
std::int64_t read_about(const SessionReader& reader, const SessionModel& mine, SavedSession& session) {
  SessionAbout about = read_session_about(reader);
  about.shape.context = mine.shape.context;
  if (about.fingerprint != mine.fingerprint || !(about.shape == mine.shape) || about.vocabulary != mine.vocabulary) {
    const bool named_alike = about.shape == mine.shape && about.vocabulary == mine.vocabulary;
    reader.refuse(named_alike ? fmt::format("was made with other weights or metadata of {}", describe(about.shape))
                              : fmt::format("was made with the model {}, and this is {}", describe(about.shape),
                                            describe(mine.shape)));
  }
  if (about.kv_type != mine.format.type) {
    reader.refuse(fmt::format("holds a KV cache of type {}, and this run has {} (give --kv-type {})",
                              name(about.kv_type), name(mine.format.type), name(about.kv_type)));
  }
  session.model = mine;
  session.prompt_tokens = about.prompt_tokens;
  session.decode_steps = about.decode_steps;
  session.steps = about.steps;
  return about.tokens;
}

plan::Plan read_plan(const SessionReader& reader, const plan::ModelShape& shape) {
  const std::span<const std::byte> text = reader.section(SectionKind::plan);
  if (text.size() > kMostPlan) reader.refuse(fmt::format("has a plan of {} bytes", text.size()));
  plan::Plan plan;
  try {
    plan = plan::from_json({reinterpret_cast<const char*>(text.data()), text.size()});
  } catch (const UserError& error) {
    reader.refuse(fmt::format("has a plan that cannot run: {}", error.what()));
  }
  if (plan.shape.layers != shape.layers || plan.shape.heads != shape.heads || plan.shape.kv_heads != shape.kv_heads ||
      plan.shape.head_dim != shape.head_dim) {
    reader.refuse("has a plan for another model");
  }
  return plan;
}

template <class T>
std::vector<T> read_numbers(const SessionReader& reader, SectionKind kind, std::size_t count, std::string_view what) {
  const std::span<const std::byte> bytes = reader.section(kind);
  if (bytes.size() != count * sizeof(T)) {
    reader.refuse(fmt::format("has {} bytes of {} instead of {}", bytes.size(), what, count * sizeof(T)));
  }
  std::vector<T> numbers(count);
  if (count > 0) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

void write_tables(const SessionSource& source, ByteWriter& to) {
  const kv::CacheShape& shape = source.cache->shape();
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      const kernels::HeadView view = source.cache->view(source.sequence, layer, head);
      to.value(view.slots);
      to.values(std::span(view.positions, view.positions == nullptr ? 0 : static_cast<std::size_t>(view.slots)));
    }
  }
}

void read_tables(const SessionReader& reader, std::int64_t tokens, SavedSession& session) {
  ByteReader from(reader.section(SectionKind::tables), reader.label());
  session.layouts.resize(session.plan.roles.size());
  for (kv::HeadLayout& head : session.layouts) {
    head.slots = from.value<std::int32_t>(1, static_cast<std::int32_t>(tokens), "the slots of a head");
    head.positions = from.values<std::int32_t>(static_cast<std::uint64_t>(tokens), "the positions of a head");
  }
  from.require_end();
  attention::require_layouts(from, session.plan, tokens, session.layouts);
}

/// A page whose first rows alone are used: zeros behind them.
std::vector<std::byte> page_of(const std::byte* from, std::int32_t rows, const kernels::KvFormat& format) {
  std::vector<std::byte> page(format.page_bytes());
  const auto used = static_cast<std::size_t>(rows);
  std::memcpy(page.data(), from, used * format.row_bytes());
  if (format.type == KvType::q8_0) {
    std::memcpy(page.data() + format.scale_offset(), from + format.scale_offset(), used * sizeof(float));
  }
  return page;
}

/// One plane of one head of a sequence.
struct HeadPlane {
  kv::SequenceId sequence = -1;
  int layer = 0, head = 0;
  kv::Plane plane = kv::Plane::k;
};

/// Copies `wanted` pages of `pages` in the stream to the head's own, a run's worth at a time.
void read_plane(SessionReader::Stream& from, kv::Cache& cache, const HeadPlane& to,
                std::pair<std::int32_t, std::int32_t> wanted_of_pages) {
  const auto [wanted, pages] = wanted_of_pages;
  const std::size_t page_bytes = cache.shape().format.page_bytes();
  for (std::int32_t page = 0; page < wanted; page += kv::kRunPages) {
    const std::int32_t count = std::min(wanted - page, kv::kRunPages);
    cache.write_pages(to.sequence, {to.layer, to.head, page}, to.plane,
                      from.take(static_cast<std::size_t>(count) * page_bytes));
  }
  from.take(static_cast<std::size_t>(pages - wanted) * page_bytes);
}

}  // namespace

bool SavedSession::whole() const {
  return std::all_of(layouts.begin(), layouts.end(), [](const kv::HeadLayout& head) { return head.positions.empty(); });
}

SessionPieces::SessionPieces(const std::filesystem::path& file, const SessionSource& source)
    : cache_(*source.cache),
      sequence_(source.sequence),
      made_(source.made.begin(), source.made.end()),
      to_(file, 6 + (made_.empty() ? 0 : 1) + static_cast<std::size_t>(cache_.shape().layers)) {
  const SavedSession& session = *source.session;
  ByteWriter about, tables, state;
  to_.begin(SectionKind::about);
  write_about(session, about);
  to_.append(about.bytes());
  to_.begin(SectionKind::plan);
  const std::string plan = plan::to_json(session.plan);
  to_.append(std::as_bytes(std::span(plan)));
  to_.begin(SectionKind::tokens);
  to_.append(std::as_bytes(std::span(session.tokens)));
  to_.begin(SectionKind::logits);
  to_.append(std::as_bytes(std::span(session.logits)));
  to_.begin(SectionKind::tables);
  write_tables(source, tables);
  to_.append(tables.bytes());
  to_.begin(SectionKind::state);
  attention::save_state(*source.state, session.plan, state);
  to_.append(state.bytes());
}

bool SessionPieces::write(std::uint64_t bytes) {
  const kv::CacheShape& shape = cache_.shape();
  const kernels::KvFormat& format = shape.format;
  for (std::uint64_t written = 0; layer_ < shape.layers && written < bytes;) {
    if (head_ == 0 && plane_ == kv::Plane::k && page_ == 0) {
      to_.begin(SectionKind::layer, static_cast<std::uint32_t>(layer_));
    }
    const std::int32_t slots = cache_.view(sequence_, layer_, head_).slots;
    if (page_ < used_pages(slots)) {
      const std::byte* from = cache_.read_page(sequence_, {layer_, head_, page_}, plane_, space_);
      const std::int32_t rows = std::min(slots - page_ * kPageTokens, kPageTokens);
      rows == kPageTokens ? to_.append({from, format.page_bytes()}) : to_.append(page_of(from, rows, format));
      written += format.page_bytes();
      ++page_;
      continue;
    }
    page_ = 0;
    plane_ = plane_ == kv::Plane::k ? kv::Plane::v : kv::Plane::k;
    if (plane_ == kv::Plane::v || ++head_ < shape.kv_heads) continue;
    head_ = 0;
    ++layer_;
  }
  return layer_ < shape.layers;
}

void SessionPieces::seal() {
  while (write(std::numeric_limits<std::uint64_t>::max())) {
  }
  if (!made_.empty()) {
    to_.begin(SectionKind::made);
    to_.append(made_);
  }
  to_.seal();
}

SessionAbout read_session_about(const SessionReader& reader) {
  ByteReader from(reader.section(SectionKind::about), reader.label());
  SessionAbout about;
  about.fingerprint = from.value<std::uint64_t>();
  about.shape.architecture = from.text(kMostName, "the architecture");
  about.shape.model_name = from.text(kMostName, "the model's name");
  for (int* number :
       {&about.shape.layers, &about.shape.heads, &about.shape.kv_heads, &about.shape.head_dim, &about.vocabulary}) {
    *number = from.value<std::int32_t>();
  }
  about.kv_type = static_cast<KvType>(from.value<std::uint8_t>(0, 3, "the KV type"));
  from.value<std::int32_t>(kPageTokens, kPageTokens, "tokens of a page");
  about.tokens = from.value<std::int64_t>(1, kMostTokens, "the number of tokens");
  about.prompt_tokens = from.value<std::int64_t>(0, about.tokens, "tokens of the prompt");
  about.decode_steps = from.value<std::int64_t>(0, about.tokens, "decoded tokens");
  about.steps = from.value<std::int64_t>(0, about.tokens, "decoded tokens");
  from.require_end();
  return about;
}

plan::Plan read_session_plan(const SessionReader& reader) {
  return read_plan(reader, read_session_about(reader).shape);
}

SavedSession read_session(const SessionReader& reader, const SessionModel& mine) {
  SavedSession session;
  const std::int64_t tokens = read_about(reader, mine, session);
  session.plan = read_plan(reader, mine.shape);
  session.tokens =
      read_numbers<text::Token>(reader, SectionKind::tokens, static_cast<std::size_t>(tokens), "token ids");
  for (const text::Token token : session.tokens) {
    if (token < 0 || token >= mine.vocabulary) {
      reader.refuse(fmt::format("has a token id {}, and the vocabulary {}", token, mine.vocabulary));
    }
  }
  const bool logits = !reader.section(SectionKind::logits).empty();
  session.logits = read_numbers<float>(reader, SectionKind::logits,
                                       logits ? static_cast<std::size_t>(mine.vocabulary) : 0, "logits");
  read_tables(reader, tokens, session);
  return session;
}

void read_state(const SessionReader& reader, const SavedSession& session, attention::SequenceState& state) {
  ByteReader from(reader.section(SectionKind::state), reader.label());
  attention::load_state(from, {&session.plan, session.model.format, session.length(), session.layouts}, state);
  from.require(state.prompt_tokens == session.prompt_tokens && state.decode_steps == session.decode_steps,
               "tokens of prompt and answer");
}

kv::SequenceId read_rows(const SessionReader& reader, const SavedSession& session, std::int64_t tokens,
                         kv::Cache& cache) {
  const kv::CacheShape& shape = cache.shape();
  const kernels::KvFormat& format = shape.format;
  const bool all = tokens == session.length();
  check(tokens > 0 && (all || (tokens < session.length() && session.whole())), "tokens that the session can give");
  const auto kv_heads = static_cast<std::size_t>(shape.kv_heads);
  check(session.layouts.size() == static_cast<std::size_t>(shape.layers) * kv_heads, "a session of the same shape");
  for (int layer = 0; layer < shape.layers; ++layer) {  // lengths first: nothing is taken that is not there
    std::size_t bytes = 0;
    for (std::size_t head = 0; head < kv_heads; ++head) {
      const kv::HeadLayout& layout = session.layouts[static_cast<std::size_t>(layer) * kv_heads + head];
      bytes += 2 * static_cast<std::size_t>(used_pages(layout.slots)) * format.page_bytes();
    }
    const std::size_t there = reader.stream(SectionKind::layer, static_cast<std::uint32_t>(layer)).left();
    if (there != bytes) reader.refuse(fmt::format("has {} bytes of layer {} instead of {}", there, layer, bytes));
  }
  std::vector<kv::HeadLayout> cut;
  if (!all) cut.assign(session.layouts.size(), {static_cast<std::int32_t>(tokens), {}});
  const kv::SequenceId sequence = cache.adopt(tokens, all ? session.layouts : cut);
  try {
    for (int layer = 0; layer < shape.layers; ++layer) {
      SessionReader::Stream from = reader.stream(SectionKind::layer, static_cast<std::uint32_t>(layer));
      for (int head = 0; head < shape.kv_heads; ++head) {
        const kernels::HeadView view = cache.view(sequence, layer, head);
        const std::size_t number = static_cast<std::size_t>(layer) * kv_heads + static_cast<std::size_t>(head);
        const std::pair pages(used_pages(view.slots), used_pages(session.layouts[number].slots));
        for (const kv::Plane plane : {kv::Plane::k, kv::Plane::v}) {
          read_plane(from, cache, {sequence, layer, head, plane}, pages);
        }
      }
      from.finish();
    }
  } catch (...) {
    cache.destroy(sequence);
    throw;
  }
  return sequence;
}

}  // namespace glimpse::engine
