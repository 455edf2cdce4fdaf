#include "tests/fuzz/fuzzing.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>

#include "tessera/base/error.h"
#include "tessera/base/text/printable.h"
#include "tests/fuzz/allocations.h"

namespace tessera::fuzz {
namespace {

constexpr std::size_t kInputs = 2000;
constexpr std::int64_t kMemory = std::int64_t{64} << 20;
constexpr double kSeconds = 1;
constexpr std::size_t kLongestMessage = 3000;

// For the handler of signals: describes the current input.
std::array<char, 200> current_input{};

extern "C" void report_signal(int signal) {
  const std::size_t length = std::char_traits<char>::length(current_input.data());
  if (::write(STDERR_FILENO, current_input.data(), length) < 0) std::_Exit(1);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// The handler has its own stack, because deep recursion uses up the stack of the thread.
void watch_signals() {
  static std::array<char, 65536> stack;
  const stack_t own{.ss_sp = stack.data(), .ss_flags = 0, .ss_size = stack.size()};
  sigaltstack(&own, nullptr);
  struct sigaction action {};
  action.sa_handler = report_signal;
  action.sa_flags = SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL, SIGVTALRM}) sigaction(signal, &action, nullptr);
}

void start_alarm(int seconds) {
  const itimerval time{.it_interval = {}, .it_value = {.tv_sec = seconds, .tv_usec = 0}};
  setitimer(ITIMER_VIRTUAL, &time, nullptr);
}

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Outcome {
  bool is_accepted = false;
  std::string fault;  // empty if the reader behaved as it must
  std::int64_t memory = 0;
  double seconds = 0;
};

std::string fault_of_message(const std::string& message) {
  if (message.empty()) return "the message is empty";
  if (message.size() > kLongestMessage) return fmt::format("the message has {} bytes", message.size());
  if (base::printable(message) != message) return "the message has characters that are not printable: " + message;
  return "";
}

std::string fault_of(const Reader& reader, const std::string& input, bool& is_accepted) {
  try {
    reader.read(input);
    is_accepted = true;
    return "";
  } catch (const InputError& error) {
    return fault_of_message(error.what());
  } catch (const Error& error) {
    return reader.may_fail ? fault_of_message(error.what()) : fmt::format("not an InputError: {}", error.what());
  } catch (const std::exception& error) {
    return fmt::format("another exception: {}", error.what());
  }
}

Outcome read(const Reader& reader, const std::string& input) {
  reader.write(input);
  Outcome outcome;
  const std::int64_t most = 4 * static_cast<std::int64_t>(input.size()) + kMemory;
  start_alarm(10);
  const double begin = processor_seconds();
  {
    const AllocationLimit limit(most);
    outcome.fault = fault_of(reader, input, outcome.is_accepted);
    outcome.memory = limit.most();
  }
  outcome.seconds = processor_seconds() - begin;
  start_alarm(0);
  if (outcome.memory > most) outcome.fault += fmt::format(" allocates {} bytes", outcome.memory);
  if (outcome.seconds > kSeconds) outcome.fault += fmt::format(" takes {} s", outcome.seconds);
  return outcome;
}

std::string input_of(const Reader& reader, std::size_t number) {
  Random random(number);
  return reader.mutate(random.one_of(reader.seeds), random);
}

}  // namespace

namespace {
std::size_t number_in(const char* variable, std::size_t fallback) {
  const char* text = std::getenv(variable);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}
}  // namespace

std::size_t inputs_to_read(std::size_t fallback) {
  return number_in("TESSERA_FUZZ_INPUTS", fallback);
}

void fuzz(const Reader& reader) {
  watch_signals();
  for (const std::string& seed : reader.seeds) {
    reader.write(seed);
    ASSERT_NO_THROW(reader.read(seed)) << reader.name << " refuses a valid input";
  }
  const std::size_t first = number_in("TESSERA_FUZZ_FIRST", 0), end = first + inputs_to_read(kInputs);
  std::size_t number = first, accepted = 0, faults = 0;
  Outcome most;
  for (; number < end && faults < 5; ++number) {
    const std::string input = input_of(reader, number);
    fmt::format_to_n(current_input.data(), current_input.size() - 1, "{}: input {}\n{}", reader.name, number, '\0');
    const Outcome outcome = read(reader, input);
    accepted += outcome.is_accepted ? 1 : 0;
    most.memory = std::max(most.memory, outcome.memory), most.seconds = std::max(most.seconds, outcome.seconds);
    if (outcome.fault.empty()) continue;
    ++faults;
    ADD_FAILURE() << reader.name << ", input " << number << " of " << input.size()
                  << " bytes: " << base::excerpt(outcome.fault, 500) << "\n  input: " << base::excerpt(input, 500);
  }
  EXPECT_GT(accepted, 0u) << "every input is refused";
  EXPECT_LT(accepted, number - first) << "no input is refused";
  fmt::print("{}: {} inputs, {} accepted; at most {} KiB and {:.1f} ms\n", reader.name, number - first, accepted,
             most.memory >> 10, most.seconds * 1e3);
}

}  // namespace tessera::fuzz
