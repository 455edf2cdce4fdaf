// Errors. Two types are all a caller needs to tell apart:
//   Error       something failed while running; a program ends with exit code 1.
//   InputError  the user gave something wrong (flag, config, file); exit code 2, nothing written.
// A message says what, where, expected and got, on one line. A library never ends the process.
#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace tessera {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
  template <typename... Args>
  explicit Error(fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

class InputError : public Error {
 public:
  using Error::Error;
};

namespace base {
// Throws Error("file:line: check failed: EXPRESSION: message").
[[noreturn]] void fail_check(const char* file, int line, const char* expression, const std::string& message);
}  // namespace base
}  // namespace tessera

// Always on, in every build. The message is formatted only on failure.
#define TESSERA_CHECK(condition, ...)                                                          \
  do {                                                                                         \
    if (!(condition)) [[unlikely]]                                                             \
      ::tessera::base::fail_check(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
