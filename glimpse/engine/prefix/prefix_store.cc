#include "glimpse/engine/prefix/prefix_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "glimpse/base/checksum.h"
#include "glimpse/base/error.h"
#include "glimpse/base/log.h"
#include "glimpse/engine/failure.h"

namespace glimpse::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBegins = "prefix-", kEnds = ".session", kPartEnds = ".session.part";
constexpr std::uint64_t kMostSalt = 1 << 24;

bool is_named(const fs::path& file, std::string_view end) {
  const std::string name = file.filename().string();
  return name.starts_with(kBegins) && name.ends_with(end);
}

std::vector<std::byte> provenance(const MadeRows& made, const std::string& salt) {
  ByteWriter to;
  to.text(salt);
  made.save(to);
  return {to.bytes().begin(), to.bytes().end()};
}

/// Whom a file of that content serves; throws UserError.
StoredPrefix stored_in(const SessionReader& reader, SavedSession session) {
  StoredPrefix stored;
  ByteReader from(reader.section(SectionKind::made), reader.label());
  stored.salt = from.text(kMostSalt, "the salt");
  stored.made.load(from, session.length());
  from.require_end();
  stored.whole = session.whole();
  stored.at_end = !session.logits.empty();
  stored.tokens = std::move(session.tokens);
  stored.plan = std::move(session.plan);
  return stored;
}

/// By all that decides whom it serves.
std::string name_of(const SessionModel& model, const KeptPrefix& prefix) {
  const ActiveSequence& sequence = prefix.sequence;
  const std::vector<std::byte> made = provenance(sequence.made, prefix.salt);
  const std::string plan = plan::to_json(sequence.plan());
  const std::uint64_t head[] = {model.fingerprint, static_cast<std::uint64_t>(model.format.type),
                                prefix.at_end() ? 1U : 0U, sequence.tokens.size(), made.size()};
  Checksum sum;
  sum.add(std::as_bytes(std::span(head)));
  sum.add(std::as_bytes(std::span(sequence.tokens)));
  sum.add(made);
  sum.add(std::as_bytes(std::span(plan)));
  return fmt::format("{}{:016x}{}", kBegins, sum.value(), kEnds);
}

/// Of the cache, or of what may be kept: with what is free so much can be taken and nothing need be written.
constexpr std::int64_t kAheadShare = 4;

/// The folder is a help and no promise: what fails is a warning.
template <class Work>
void logged(const Work& work) noexcept {
  try {
    work();
  } catch (...) {
    try {
      log_message(LogLevel::warning,
                  fmt::format("a prefix is not kept on the disk: {}", text_of(std::current_exception())));
    } catch (...) {
    }
  }
}

}  // namespace

PrefixStore::PrefixStore(const EngineOptions& options, const LoadedModel& loaded, const kv::Cache& cache)
    : folder_(options.prefix_folder),
      most_bytes_(options.prefix_folder_bytes),
      piece_bytes_(static_cast<std::uint64_t>(options.prefix_piece_bytes)) {
  if (!on()) return;
  if (const std::string why = why_read_only(folder_ / "prefix"); !why.empty()) {
    throw UserError(
        fmt::format("the folder '{}' of kept prefixes: {}; give one that can be written to", folder_.string(), why));
  }
  model_ = session_model(loaded, cache);
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  std::error_code failed;
  for (fs::directory_iterator entry(folder_, failed), end; !failed && entry != end; entry.increment(failed)) {
    std::error_code gone;  // another process may have taken it away
    if (!entry->is_regular_file(gone)) continue;
    if (is_named(entry->path(), kPartEnds)) remove_abandoned_part(entry->path());
    if (!is_named(entry->path(), kEnds)) continue;
    const fs::file_time_type time = entry->last_write_time(gone);
    if (!gone) files.emplace_back(time, entry->path());
  }
  if (failed) {
    throw UserError(fmt::format("the folder '{}' of kept prefixes: {}; give one that can be read", folder_.string(),
                                failed.message()));
  }
  std::sort(files.begin(), files.end());
  for (const auto& [time, file] : files) {
    try {
      read(file);
    } catch (const UserError& error) {
      log_message(LogLevel::debug, fmt::format("no kept prefix: {}", error.what()));
    }
  }
  make_room(0);
}

PrefixStore::~PrefixStore() {
  logged([&] { settle(); });
}

void PrefixStore::read(const fs::path& file) {
  const SessionReader reader(file);
  StoredPrefix stored = stored_in(reader, read_session(reader, model_));
  stored.file = file;
  std::error_code gone;
  const auto bytes = fs::file_size(file, gone);
  if (gone) reader.refuse(fmt::format("is gone: {}", gone.message()));
  stored.bytes = static_cast<std::int64_t>(bytes);
  bytes_ += stored.bytes;
  stored_.push_back(std::move(stored));
}

std::unique_ptr<PrefixStore::Writing> PrefixStore::begin(const KeptPrefix& prefix, const kv::Cache& cache,
                                                         const attention::GateFiles& gates) {
  const fs::path file = folder_ / name_of(model_, prefix);
  if ((writing_ != nullptr && writing_->stored.file == file) || has(file)) return nullptr;
  const ActiveSequence& sequence = prefix.sequence;
  const auto pages = cache.pages_held(sequence.id);
  const std::int64_t bytes = pages * 2 * static_cast<std::int64_t>(cache.shape().format.page_bytes());
  if (bytes > most_bytes_) return nullptr;
  make_room(bytes);
  const std::vector<std::byte> made = provenance(sequence.made, prefix.salt);
  const attention::SequenceState fresh(sequence.plan(), gates);
  const SequenceParts parts{&sequence, prefix.at_end() ? &sequence.attention : &fresh, sequence.logits, made};
  auto writing = std::make_unique<Writing>();
  writing->prefix = &prefix;
  writing->stored = {file,          bytes,       sequence.tokens, sequence.plan(),
                     sequence.made, prefix.salt, prefix.whole,    prefix.at_end()};
  writing->pieces = begin_parts(parts, file, model_, cache);
  return writing;
}

void PrefixStore::publish(Writing& writing) {
  writing.pieces->seal();
  try {
    writing.published = std::async(std::launch::async, [pieces = writing.pieces.get()] { pieces->publish(); });
  } catch (const std::system_error&) {  // no thread
    writing.published = std::async(std::launch::deferred, [pieces = writing.pieces.get()] { pieces->publish(); });
  }
  writing.prefix = nullptr;
}

void PrefixStore::settle() {
  const std::unique_ptr<Writing> writing = std::move(writing_);
  if (writing == nullptr || writing->prefix != nullptr) return;
  writing->published.get();
  read(writing->stored.file);
  make_room(0);
}

void PrefixStore::save(const KeptPrefix& prefix, const kv::Cache& cache, const attention::GateFiles& gates) noexcept {
  if (!on()) return;
  logged([&] {
    if (writing_ != nullptr && writing_->prefix == &prefix) return publish(*writing_);
    const std::unique_ptr<Writing> now = begin(prefix, cache, gates);
    if (now == nullptr) return;
    now->pieces->finish();
    read(now->stored.file);
    make_room(0);
  });
}

bool PrefixStore::write_ahead(PrefixCache& prefixes, const kv::Cache& cache,
                              const attention::GateFiles& gates) noexcept {
  if (!on()) return false;
  bool wrote = false;
  logged([&] {
    if (writing_ != nullptr && writing_->prefix == nullptr) {
      if (writing_->published.wait_for(std::chrono::seconds(0)) == std::future_status::timeout) return;
      settle();
    }
    if (writing_ == nullptr) {
      const KeptPrefix* const next = prefixes.next_to_write(cache, kAheadShare);
      if (next == nullptr) return;
      wrote = true;
      writing_ = begin(*next, cache, gates);
      if (writing_ == nullptr) return;
    }
    wrote = true;
    try {
      if (!writing_->pieces->write(piece_bytes_)) publish(*writing_);
    } catch (...) {
      writing_.reset();
      throw;
    }
  });
  return wrote;
}

void PrefixStore::leave(const KeptPrefix& prefix) {
  if (writing_ != nullptr && writing_->prefix == &prefix) writing_.reset();
}

bool PrefixStore::has(const fs::path& file) {
  const bool listed =
      std::any_of(stored_.begin(), stored_.end(), [&](const StoredPrefix& each) { return each.file == file; });
  std::error_code failed;
  if (!fs::exists(file, failed)) {
    if (listed) drop(file);
    return false;
  }
  if (listed) return true;
  if (forgotten_.erase(file) > 0) return false;
  try {
    read(file);
  } catch (const UserError&) {
    return false;
  }
  return true;
}

void PrefixStore::make_room(std::int64_t bytes) {
  while (!stored_.empty() && bytes_ + bytes > most_bytes_) {
    std::error_code failed;
    fs::remove(stored_.front().file, failed);
    bytes_ -= stored_.front().bytes;
    stored_.pop_front();
  }
}

const StoredPrefix* PrefixStore::find(const Asked& asked, const std::string& salt) {
  const StoredPrefix* best = nullptr;
  std::int64_t most = 0;
  const auto look = [&](const StoredPrefix& stored) {
    if (stored.salt != salt) return;
    const Admitted share = admitted(stored.offered(), asked);
    if (share.tokens <= most) return;
    best = &stored;
    most = share.tokens;
  };
  for (const StoredPrefix& stored : stored_) look(stored);
  const bool waits = writing_ != nullptr && writing_->prefix == nullptr;
  if (waits) look(writing_->stored);
  if (!waits || best != &writing_->stored) return best;
  logged([&] { settle(); });
  return find(asked, salt);
}

OpenedPrefix PrefixStore::open(const StoredPrefix& prefix) {
  OpenedPrefix opened(prefix.file);
  opened.session = read_session(opened.reader, model_);
  if (!stored_in(opened.reader, opened.session).serves_as(prefix))
    opened.reader.refuse("is another prefix than it was");
  opened.made = prefix.made;
  opened.salt = prefix.salt;
  opened.at_end = prefix.at_end;
  // It was used last of all.
  const auto place = std::find_if(stored_.begin(), stored_.end(), [&](const auto& each) { return &each == &prefix; });
  if (place != stored_.end()) stored_.splice(stored_.end(), stored_, place);
  std::error_code failed;
  fs::last_write_time(prefix.file, fs::file_time_type::clock::now(), failed);
  return opened;
}

void PrefixStore::forget(const fs::path& file) {
  drop(file);
  forgotten_.insert(file);
}

void PrefixStore::drop(const fs::path& file) {
  stored_.remove_if([&](const StoredPrefix& each) {
    if (each.file != file) return false;
    bytes_ -= each.bytes;
    return true;
  });
}

}  // namespace glimpse::engine
