#include "tests/support/reseal_session.h"

#include <cstring>
#include <vector>

#include "glimpse/base/checksum.h"
#include "glimpse/engine/session/file.h"

namespace glimpse::engine {

void reseal_session(std::span<std::byte> file) {
  SessionHeader header{};
  if (file.size() < sizeof header) return;
  std::memcpy(&header, file.data(), sizeof header);
  header.file_bytes = file.size();
  const std::size_t room = (file.size() - sizeof header) / sizeof(SessionEntry);
  if (header.sections > room) return;
  std::vector<SessionEntry> table(header.sections);
  std::byte* const at = file.data() + sizeof header;
  if (!table.empty()) std::memcpy(table.data(), at, table.size() * sizeof(SessionEntry));
  for (SessionEntry& entry : table) {
    const std::uint64_t bytes = (entry.bytes + kSessionAlign - 1) / kSessionAlign * kSessionAlign;
    if (entry.offset > file.size() || bytes < entry.bytes || bytes > file.size() - entry.offset) continue;
    entry.checksum = checksum(file.subspan(static_cast<std::size_t>(entry.offset), static_cast<std::size_t>(bytes)));
  }
  header.checksum = 0;
  Checksum sum;
  sum.add(std::as_bytes(std::span(&header, 1)));
  sum.add(std::as_bytes(std::span(table)));
  header.checksum = sum.value();
  std::memcpy(file.data(), &header, sizeof header);
  if (!table.empty()) std::memcpy(at, table.data(), table.size() * sizeof(SessionEntry));
}

}  // namespace glimpse::engine
