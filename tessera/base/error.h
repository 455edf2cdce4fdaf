// Errors. There are two types:
//   Error       A failure at run time. A program ends with exit code 1.
//   InputError  Invalid input of the user (flag, config, file). A program ends with exit code 2 and writes nothing.
// A message is one line with the problem, the place, the expected value and the value found. Library functions throw
// and do not end the process, unless their comments state that they do.
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
// Throws Error("MESSAGE (FILE:LINE: EXPRESSION)").
[[noreturn]] void fail_check(const char* file, int line, const char* expression, const std::string& message);
}  // namespace base
}  // namespace tessera

// Throws Error if the condition is false. Active in every build. The message is formatted only on failure.
#define TESSERA_CHECK(condition, ...)                                                          \
  do {                                                                                         \
    if (!(condition)) [[unlikely]]                                                             \
      ::tessera::base::fail_check(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
