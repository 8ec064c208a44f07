#include "glimpse/engine/session/file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "glimpse/base/error.h"

namespace glimpse::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "session files are little endian");
static_assert(sizeof(SessionHeader) == 32 && sizeof(SessionEntry) == 32);

/// More than any model has layers.
constexpr std::uint32_t kMostSections = 1 << 16;

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kSessionAlign - 1) / kSessionAlign * kSessionAlign;
}

std::uint64_t head_checksum(SessionHeader header, std::span<const SessionEntry> table) {
  header.checksum = 0;
  Checksum sum;
  sum.add(std::as_bytes(std::span(&header, 1)));
  sum.add(std::as_bytes(table));
  return sum.value();
}

std::string_view name(SectionKind kind) {
  constexpr std::string_view names[] = {"", "about", "plan", "tokens", "logits", "tables", "state", "layer", "made"};
  const auto number = static_cast<std::size_t>(kind);
  return number < std::size(names) ? names[number] : "unknown";
}

std::string label_of(const std::filesystem::path& file) {
  return fmt::format("session '{}'", file.string());
}

}  // namespace

std::string title(const SessionEntry& entry) {
  const auto kind = static_cast<SectionKind>(entry.kind);
  return kind == SectionKind::layer ? fmt::format("layer {}", entry.index) : std::string(name(kind));
}

SessionReader::SessionReader(const std::filesystem::path& file) : label_(label_of(file)) {
  try {
    mapped_.emplace(file);
  } catch (const UserError& error) {
    throw UserError(fmt::format("--session: {}", error.what()));
  }
  bytes_ = mapped_->bytes();
  check_table();
}

SessionReader::SessionReader(std::span<const std::byte> bytes, const std::string& label)
    : label_(label_of(label)), bytes_(bytes) {
  check_table();
}

void SessionReader::refuse(const std::string& problem) const {
  throw UserError(
      fmt::format("{} {}; it is left as it is: name another file, or delete it to start anew", label_, problem));
}

void SessionReader::check_table() {
  SessionHeader header{};
  if (bytes_.size() < kSessionMagic.size() ||
      std::memcmp(bytes_.data(), kSessionMagic.data(), kSessionMagic.size()) != 0) {
    refuse("is not a saved session");
  }
  if (bytes_.size() < sizeof header) refuse(fmt::format("is cut off after {} bytes", bytes_.size()));
  std::memcpy(&header, bytes_.data(), sizeof header);
  if (header.version != kSessionVersion) {
    refuse(fmt::format("is of format version {}, and this program reads version {}", header.version, kSessionVersion));
  }
  if (header.file_bytes > bytes_.size()) {
    refuse(fmt::format("is cut off: it has {} of {} bytes", bytes_.size(), header.file_bytes));
  }
  if (header.file_bytes < bytes_.size()) {
    refuse(fmt::format("has {} bytes and should have {}", bytes_.size(), header.file_bytes));
  }
  const std::uint64_t table_bytes = std::uint64_t{header.sections} * sizeof(SessionEntry);
  if (header.sections > kMostSections || sizeof header + table_bytes > bytes_.size()) {
    refuse(fmt::format("has a table of {} sections that cannot be right", header.sections));
  }
  table_.resize(header.sections);
  if (!table_.empty()) std::memcpy(table_.data(), bytes_.data() + sizeof header, static_cast<std::size_t>(table_bytes));
  if (head_checksum(header, table_) != header.checksum) refuse("is damaged: its table fails the check");
  const std::uint64_t table_end = sizeof header + table_bytes;
  std::uint64_t end = aligned(table_end);
  for (std::uint64_t at = table_end; at < std::min<std::uint64_t>(end, bytes_.size()); ++at) {
    if (bytes_[static_cast<std::size_t>(at)] != std::byte{0}) refuse("is damaged behind its table");
  }
  for (const SessionEntry& entry : table_) {
    const std::uint64_t left = end <= bytes_.size() ? bytes_.size() - end : 0;
    if (entry.offset != end || entry.bytes > left || aligned(entry.bytes) > left) {
      refuse(fmt::format("has a section '{}' of {} bytes that does not fit", title(entry), entry.bytes));
    }
    end += aligned(entry.bytes);
  }
  if (end != bytes_.size()) refuse("has bytes that no section speaks of");
}

bool SessionReader::has(SectionKind kind) const {
  return std::any_of(table_.begin(), table_.end(),
                     [&](const SessionEntry& entry) { return entry.kind == static_cast<std::uint32_t>(kind); });
}

const SessionEntry& SessionReader::entry(SectionKind kind, std::uint32_t index) const {
  for (const SessionEntry& entry : table_) {
    if (entry.kind == static_cast<std::uint32_t>(kind) && entry.index == index) return entry;
  }
  refuse(fmt::format("has no section '{}'", title({static_cast<std::uint32_t>(kind), index, 0, 0, 0})));
}

std::span<const std::byte> SessionReader::padded(const SessionEntry& entry) const {
  return bytes_.subspan(static_cast<std::size_t>(entry.offset), static_cast<std::size_t>(aligned(entry.bytes)));
}

std::span<const std::byte> SessionReader::section(SectionKind kind, std::uint32_t index) const {
  const SessionEntry& found = entry(kind, index);
  if (checksum(padded(found)) != found.checksum) {
    refuse(fmt::format("is damaged: its section '{}' fails the check", title(found)));
  }
  return padded(found).first(static_cast<std::size_t>(found.bytes));
}

SessionReader::Stream SessionReader::stream(SectionKind kind, std::uint32_t index) const {
  Stream stream;
  stream.reader_ = this;
  stream.entry_ = &entry(kind, index);
  const std::span<const std::byte> all = padded(*stream.entry_);
  stream.bytes_ = all.first(static_cast<std::size_t>(stream.entry_->bytes));
  stream.padding_ = all.subspan(stream.bytes_.size());
  return stream;
}

std::span<const std::byte> SessionReader::Stream::take(std::size_t count) {
  check(count <= bytes_.size(), "no more is taken than the section has");
  const std::span<const std::byte> taken = bytes_.first(count);
  bytes_ = bytes_.subspan(count);
  sum_.add(taken);
  return taken;
}

void SessionReader::Stream::finish() {
  check(bytes_.empty(), "a section is taken whole");
  sum_.add(padding_);
  if (sum_.value() != entry_->checksum) {
    reader_->refuse(fmt::format("is damaged: its section '{}' fails the check", title(*entry_)));
  }
}

}  // namespace glimpse::engine
