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

// Makes a store with time limits. The returned connection has its own thread, which creates the inner store with `open`
// and calls the inner store. After the limit, the caller gets the Error "store: WHERE: get 'KEY': no answer within N
// ms". Queued and later calls on this connection then throw this error at once. The result of a call that exceeded its
// limit is dropped. The destructor does not wait for such a call, because the thread is detached. Connections from
// connect() have the same limits. Also throws the errors of the inner store.
std::shared_ptr<Store> make_limited_store(std::function<std::shared_ptr<Store>()> open, const StoreLimits& limits,
                                          const std::string& where);

}  // namespace tessera::rendezvous
