// A store whose calls have a time limit, on top of a store whose calls may wait forever.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "tessera/rendezvous/store.h"

namespace tessera::rendezvous {

struct StoreLimits {
  std::chrono::milliseconds connect;  // limit for `open` and connect()
  std::chrono::milliseconds answer;   // limit for every other call
};

// Makes a store with time limits. The connection has its own thread, which makes the inner store with `open` and calls
// it. A caller waits up to the limit and then gets an Error "store: WHERE: get 'KEY': no answer within N ms". Queued
// and later calls on this connection then fail at once with the same error. The thread is detached from the connection.
// The result of a call that exceeded its limit is dropped, and the destructor does not wait for the call. Connections
// from connect() have the same limits. Throws the errors of the inner store too.
std::shared_ptr<Store> make_limited_store(std::function<std::shared_ptr<Store>()> open, const StoreLimits& limits,
                                          const std::string& where);

}  // namespace tessera::rendezvous
