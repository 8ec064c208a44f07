// What a call is refused with. Any thread.
#pragma once

#include <string>

#include "glimpse/base/error.h"

namespace glimpse {

/// The text of the UserError that the call ends in; empty where it ends well.
template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace glimpse
