// Clients of every kind for a soak: whole requests, some that are cancelled anywhere, bad ones, and some that stall.
#pragma once

#include <atomic>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/client.h"

namespace glimpse::server {

/// Request `i` is the same in every run; what meets what is not. Any thread calls one().
class SoakLoad {
 public:
  /// `policies`: whose requests the server takes. `chat`: a few requests go through the processes of chat templates
  /// with tools, and of schemas; the model's template has tools then.
  SoakLoad(const Running& server, std::vector<std::string> policies, bool chat);

  /// Makes request `number`, and checks its answer.
  void one(int number);
  /// Reads what those that stalled were told; they do nothing of their own until then. Call it when the server has cut
  /// them.
  void end_stalled();

  /// What was made so far.
  struct Counts {
    std::atomic<int> whole{0}, cancelled{0}, bad{0}, stalled{0};
  };
  const Counts& counts() const { return counts_; }

 private:
  using Random = std::mt19937;
  JsonValue body(Random& random, int most_tokens) const;
  void whole(Random& random);
  void cancel(Random& random);
  void cancel_stream(Random& random);
  void bad(Random& random);
  void stall(Random& random);

  const Running& server_;
  const std::vector<std::string> policies_;
  const bool chat_;
  Counts counts_;
  std::mutex mutex_;
  std::vector<std::pair<Client, int>> stalled_;  ///< and the status that each is told; 0: whatever
};

}  // namespace glimpse::server
