// One client's connection: reads requests, answers them, sees the client leave. A coroutine on the I/O thread.
#pragma once

#include "glimpse/server/hub.h"

namespace glimpse::server {

/// Serves a socket that was accepted, which it closes in the end. It is among the hub's peers until then.
void start_connection(Hub& hub, int socket, bool version_6);

}  // namespace glimpse::server
