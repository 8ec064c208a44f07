#include "glimpse/base/bytes.h"

#include <fmt/format.h>

#include "glimpse/base/error.h"

namespace glimpse {

void ByteReader::refuse(std::string_view problem) const {
  throw UserError(fmt::format("{}: {} cannot be right", what_, problem));
}

void ByteReader::refuse_value(std::string_view name, double value) const {
  throw UserError(fmt::format("{}: {} = {:.10g} cannot be right", what_, name, value));
}

void ByteReader::refuse_end() const {
  throw UserError(fmt::format("{} ends in the middle of a value", what_));
}

}  // namespace glimpse
