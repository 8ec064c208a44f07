// Errors that one request is the cause of. Any thread.
#pragma once

#include "glimpse/base/error.h"

namespace glimpse {

/// What a request asks for cannot be had, and that was found when it ran: its own fault, and its alone.
class RequestError : public UserError {
 public:
  using UserError::UserError;
};

}  // namespace glimpse
