// The container of a saved session: sections of bytes under checksums, in a file that is replaced whole or not at all.
// It knows nothing of what is in the sections (content.h does).
//
// Layout, little endian: SessionHeader, a SessionEntry for each section, then the sections in that order, each from the
// next multiple of kSessionAlign on and filled up with zeros: no byte lies outside a checksum. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/base/checksum.h"
#include "glimpse/base/mapped_file.h"

namespace glimpse::engine {

inline constexpr std::string_view kSessionMagic = "GLIMPSES";
inline constexpr std::uint32_t kSessionVersion = 1;
inline constexpr std::size_t kSessionAlign = 64;

enum class SectionKind : std::uint32_t { about = 1, plan, tokens, logits, tables, state, layer, made };

struct SessionHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t sections;
  std::uint64_t file_bytes;
  std::uint64_t checksum;  ///< of this header with 0 here, and of the table
};

struct SessionEntry {
  std::uint32_t kind;
  std::uint32_t index;  ///< SectionKind::layer: which
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t checksum;  ///< of the section and the zeros behind it
};

/// What a section is called, "tokens" or "layer 3".
std::string title(const SessionEntry& entry);

/// Writes FILE.part and renames it over FILE. Destroyed before commit, it leaves FILE alone.
class SessionWriter {
 public:
  /// Throws UserError when the folder is missing or not writable, FILE is no regular file, or another process is
  /// saving it.
  SessionWriter(const std::filesystem::path& file, std::size_t sections);
  ~SessionWriter();
  SessionWriter(const SessionWriter&) = delete;
  SessionWriter& operator=(const SessionWriter&) = delete;

  /// The next section begins; what is appended until the next begin is in it. Throws UserError when the disk is full.
  void begin(SectionKind kind, std::uint32_t index = 0);
  void append(std::span<const std::byte> bytes);
  /// All sections are there: they and the folder are synced before it returns. Throws UserError; FILE is the old one
  /// then. The same as seal() and publish().
  void commit();
  /// Writes what is in memory; nothing is appended any more.
  void seal();
  /// Waits for the disk, and gives the file its name. Any thread, while no other calls anything.
  void publish();
  std::uint64_t bytes() const { return written_; }

 private:
  void end_section();
  void put(std::span<const std::byte> bytes);
  void flush();
  [[noreturn]] void fail(std::string_view what) const;

  std::filesystem::path file_, part_;
  int descriptor_ = -1;
  bool committed_ = false;
  std::vector<SessionEntry> table_;
  std::size_t sections_;
  Checksum sum_;
  std::vector<std::byte> buffer_;
  std::uint64_t written_ = 0;  ///< bytes before and in `buffer_`
};

/// Removes FILE.part, a regular file, where a save left it behind: one that nobody has under a lock.
void remove_abandoned_part(const std::filesystem::path& part);

/// Throws UserError where no session is and none could be written later: before hours of work, not after. One that is
/// there may be read where it cannot be replaced.
void require_session_place(const std::filesystem::path& file);
/// Why a file of that name cannot be made or replaced, as far as its folder goes; empty where it can.
std::string why_read_only(const std::filesystem::path& file);

class SessionReader {
 public:
  /// Maps the file. Throws UserError naming it: no session, another version, cut off, a table that fails its check.
  explicit SessionReader(const std::filesystem::path& file);
  /// The same checks on bytes in memory (tests, fuzzing). The bytes must outlive the object.
  SessionReader(std::span<const std::byte> bytes, const std::string& label);

  /// "session 'FILE'", to stand in front of a problem.
  const std::string& label() const { return label_; }
  /// All sections in the file's order.
  std::span<const SessionEntry> sections() const { return table_; }
  bool has(SectionKind kind) const;
  /// Bytes of a section after its check. Throws UserError when there is none or it fails.
  std::span<const std::byte> section(SectionKind kind, std::uint32_t index = 0) const;

  /// A section whose bytes are used while they are checked: take everything in order, then finish.
  class Stream {
   public:
    std::size_t left() const { return bytes_.size(); }
    std::span<const std::byte> take(std::size_t count);
    /// Throws UserError when the check fails: what was taken is of no use then.
    void finish();

   private:
    friend class SessionReader;
    const SessionReader* reader_ = nullptr;
    const SessionEntry* entry_ = nullptr;
    std::span<const std::byte> bytes_, padding_;
    Checksum sum_;
  };
  Stream stream(SectionKind kind, std::uint32_t index = 0) const;
  [[noreturn]] void refuse(const std::string& problem) const;

 private:
  void check_table();
  const SessionEntry& entry(SectionKind kind, std::uint32_t index) const;
  std::span<const std::byte> padded(const SessionEntry& entry) const;

  std::string label_;
  std::optional<MappedFile> mapped_;
  std::span<const std::byte> bytes_;
  std::vector<SessionEntry> table_;
};

}  // namespace glimpse::engine
