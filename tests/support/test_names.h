// Names of tests with parameters, and what a failure says of a parameter. Any thread.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <ostream>
#include <string>
#include <type_traits>

#include "glimpse/base/dtype.h"

namespace glimpse {

/// Letters, digits and single underscores, as GoogleTest wants names: "--attn-opt set=layer" is attn_opt_set_layer.
inline std::string test_name(const std::string& text) {
  std::string name;
  for (const char c : text) {
    const bool plain = static_cast<unsigned char>(c) < 0x80 && std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (plain) name += c;
    if (!plain && !name.empty() && name.back() != '_') name += '_';
  }
  while (!name.empty() && name.back() == '_') name.pop_back();
  return name.empty() ? "empty" : name;
}

/// Names a test by its parameter: a text by itself, anything else by what PrintTo prints of it.
struct PrintedName {
  template <class Info>
  std::string operator()(const Info& info) const {
    if constexpr (std::is_convertible_v<decltype(info.param), std::string>) {
      return test_name(info.param);
    } else {
      return test_name(testing::PrintToString(info.param));
    }
  }
};

inline void PrintTo(KvType type, std::ostream* out) {
  *out << name(type);
}

}  // namespace glimpse
