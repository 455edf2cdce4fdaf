// A store whose calls end in time, over one whose calls may wait for ever.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "tessera/rendezvous/store.h"

namespace tessera::rendezvous {

struct StoreLimits {
  std::chrono::milliseconds connect;  // of `open` and connect()
  std::chrono::milliseconds answer;   // of every other call
};

// A thread of the connection's own makes the store with `open` and makes its calls; whoever asks waits up to the limit,
// then has an Error "store: WHERE: get 'KEY': no answer within N ms", which all that waits behind it or comes later on
// this connection has at once. The thread is left alone with that call: what it still brings is dropped, nobody waits
// for its end. Connections that connect() gives have the same limits. Errors: the store's too.
std::shared_ptr<Store> make_limited_store(std::function<std::shared_ptr<Store>()> open, const StoreLimits& limits,
                                          const std::string& where);

}  // namespace tessera::rendezvous
