#include "glimpse/server/server.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/server/connection.h"
#include "glimpse/server/guard.h"
#include "glimpse/server/wakes.h"

namespace glimpse::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::seconds kGoodbye{3};  ///< for answers that are being written when the server stops
constexpr std::chrono::milliseconds kLookAgain{20};
constexpr std::chrono::milliseconds kAcceptAgain{50};
constexpr std::chrono::milliseconds kCutCloses{1};  ///< a connection that is cut gives its descriptor back

tcp::endpoint endpoint_of(const ServerOptions& options) {
  error_code failed;
  const auto address = asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, failed);
  if (failed) {
    throw UserError(fmt::format("--host '{}' is no address; give one of this machine's, as 127.0.0.1 or 0.0.0.0",
                                excerpt(options.host)));
  }
  return {address, static_cast<asio::ip::port_type>(options.port)};
}

}  // namespace

struct Server::Impl {
  explicit Impl(ServerOptions options)
      : hub{std::move(options), io, pool, {}, false, 0, {}, {}, {}, {}}, acceptor(io), signals(io), woken(io) {
    check_posture(hub.options);
    const tcp::endpoint endpoint = endpoint_of(hub.options);
    error_code failed;
    hub.wakes = std::make_shared<Wakes>();
    woken.assign(fcntl(hub.wakes->event_fd(), F_DUPFD_CLOEXEC, 0));  // asio closes its own
    acceptor.open(endpoint.protocol(), failed);
    if (!failed) acceptor.set_option(tcp::acceptor::reuse_address(true), failed);
    if (!failed) acceptor.bind(endpoint, failed);
    if (!failed) acceptor.listen(asio::socket_base::max_listen_connections, failed);
    if (!failed) acceptor.non_blocking(true, failed);
    if (failed) {
      throw UserError(fmt::format("cannot listen on {} port {}: {}; give another --host or --port", hub.options.host,
                                  hub.options.port, failed.message()));
    }
    version_6 = endpoint.address().is_v6();
  }

  // What is declared first ends last: handlers that never ran go with the io_context.
  asio::io_context io{1};
  asio::thread_pool pool{2};
  Hub hub;
  tcp::acceptor acceptor;
  asio::signal_set signals;
  bool version_6 = false;
  asio::posix::stream_descriptor woken;  ///< readable when hub.wakes has somebody
  std::exception_ptr failure;            ///< what ends run()

  void load() noexcept {
    try {
      auto made = std::make_unique<const Backend>(hub.options);
      asio::post(io, [this, made = std::move(made)]() mutable {
        if (hub.stopping) return;
        hub.backend = std::move(made);
        if (hub.options.on_ready) hub.options.on_ready();
      });
    } catch (...) {
      asio::post(io, [this, thrown = std::current_exception()] {
        failure = thrown;
        end();
      });
    }
  }

  /// Until say_goodbye() closes the descriptor.
  asio::awaitable<void> take_wakes() {
    std::uint64_t count = 0;
    for (error_code failed; !failed;) {
      co_await woken.async_read_some(asio::buffer(&count, sizeof count),
                                     asio::redirect_error(asio::use_awaitable, failed));
      if (!failed) hub.wakes->wake_all();
    }
  }

  asio::awaitable<void> accept_all() {
    asio::steady_timer pause(io);
    while (!hub.stopping) {
      error_code failed;
      tcp::socket socket(io);
      // Where no descriptor is left, accept() says so whether somebody waits or not, and nobody is cut for nobody.
      co_await acceptor.async_wait(tcp::acceptor::wait_read, asio::redirect_error(asio::use_awaitable, failed));
      if (hub.stopping) break;
      if (!failed) acceptor.accept(socket, failed);
      if (failed == asio::error::would_block) continue;
      if (failed) {
        const bool full = failed == asio::error::no_descriptors || failed == std::errc::too_many_files_open_in_system;
        pause.expires_after(full && hub.cut_longest() ? kCutCloses : kAcceptAgain);
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, failed));
        continue;
      }
      if (!hub.make_room()) continue;  // the socket closes
      start_connection(hub, socket.release(failed), version_6);
    }
  }

  void wait_for_signals() {
    if (!hub.options.signals) return;
    signals.add(SIGINT);
    signals.add(SIGTERM);
    signals.async_wait([this](const error_code& failed, int) {
      if (failed) return;
      signals.clear();  // a second one ends the program at once
      end();
    });
  }

  void end() {
    if (std::exchange(hub.stopping, true)) return;
    error_code ignored;
    acceptor.close(ignored);
    signals.cancel(ignored);
    for (const auto& peer : hub.peers) {
      if (peer->busy) {
        peer->wake();
      } else {
        peer->cut();
      }
    }
    asio::co_spawn(io, say_goodbye(), asio::detached);
  }
  /// Lets answers end with their error, then cuts what is left.
  asio::awaitable<void> say_goodbye() {
    asio::steady_timer pause(io);
    const auto last = std::chrono::steady_clock::now() + kGoodbye;
    while (!hub.peers.empty() && std::chrono::steady_clock::now() < last) {
      error_code ignored;
      pause.expires_after(kLookAgain);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
    for (const auto& peer : hub.peers) peer->cut();
    error_code ignored;
    woken.close(ignored);
  }
};

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Server::~Server() = default;

int Server::port() const {
  return impl_->acceptor.local_endpoint().port();
}

void Server::run() {
  impl_->wait_for_signals();
  asio::co_spawn(impl_->io, impl_->accept_all(), asio::detached);
  asio::co_spawn(impl_->io, impl_->take_wakes(), asio::detached);
  std::thread loader([impl = impl_.get()] { impl->load(); });
  try {
    impl_->io.run();
  } catch (...) {  // of a handler, where memory is short: the threads end first
    impl_->failure = std::current_exception();
  }
  loader.join();
  impl_->pool.join();
  impl_->hub.backend.reset();
  if (impl_->failure) std::rethrow_exception(impl_->failure);
}

void Server::stop() {
  asio::post(impl_->io, [impl = impl_.get()] { impl->end(); });
}

}  // namespace glimpse::server
