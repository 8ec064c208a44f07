// Checks tokenizer.* metadata so that libllama may be given it: it asserts that tokens differ, that a BOS or EOS that
// it is to add exists, and it trusts element types, lengths and the text of byte tokens. Any thread.
#pragma once

#include <cstddef>
#include <string>

#include "glimpse/base/metadata.h"

namespace glimpse::model {

/// The number of tokens. Throws UserError naming `label`.
std::size_t check_vocabulary(const Metadata& metadata, const std::string& label);

}  // namespace glimpse::model
