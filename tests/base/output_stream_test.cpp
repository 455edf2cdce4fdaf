#include "tessera/base/process/output_stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::base {
namespace {

// A pipe whose reader does not read until read_all() is called.
class SlowPipe {
 public:
  SlowPipe() {
    EXPECT_EQ(pipe2(ends_.data(), O_CLOEXEC), 0);
    EXPECT_EQ(fcntl(ends_[1], F_SETFL, O_NONBLOCK), 0);
    EXPECT_GT(fcntl(ends_[1], F_SETPIPE_SZ, 4096), 0);
  }
  ~SlowPipe() {
    close_writer();
    close_reader();
  }
  SlowPipe(const SlowPipe&) = delete;
  SlowPipe& operator=(const SlowPipe&) = delete;

  int writer() const { return ends_[1]; }
  void close_writer() { close_end(1); }
  void close_reader() { close_end(0); }
  std::string read_all() const {
    std::string text(1 << 16, ' ');
    std::size_t size = 0;
    for (ssize_t got = 1; got > 0; size += static_cast<std::size_t>(std::max<ssize_t>(got, 0)))
      got = read(ends_[0], text.data() + size, text.size() - size);
    return text.substr(0, size);
  }

 private:
  void close_end(std::size_t end) {
    if (ends_[end] >= 0) close(std::exchange(ends_[end], -1));
  }
  std::array<int, 2> ends_{-1, -1};
};

TEST(OutputStream, WritesWhatStdioWrites) {
  SlowPipe pipe;
  {
    OutputStream output(pipe.writer(), _IOFBF);
    std::fputs("3 of them\n", output.stream());
    output.flush();
    EXPECT_EQ(output.failure(), "");
    std::fputs("more", output.stream());
  }
  pipe.close_writer();
  EXPECT_EQ(pipe.read_all(), "3 of them\nmore");
}

TEST(OutputStream, WaitsForASlowReaderOfADescriptorThatDoesNotBlock) {
  SlowPipe pipe;
  const std::string text(20'000, 'x');  // more than the pipe holds
  std::string failure = "not written";
  std::jthread writer([&] {
    OutputStream output(pipe.writer(), _IOFBF);
    std::fputs(text.c_str(), output.stream());
    output.flush();
    failure = output.failure();
    pipe.close_writer();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(pipe.read_all(), text);
  writer.join();
  EXPECT_EQ(failure, "");
}

TEST(OutputStream, HoldsTextForASlowReader) {
  SlowPipe pipe;
  ASSERT_EQ(fcntl(pipe.writer(), F_SETFL, 0), 0);  // a write to the full pipe would block
  std::string text, expected;
  OutputStream output(pipe.writer(), _IONBF);
  output.hold_for_slow_readers();
  for (int i = 0; i < 3000; ++i) {
    text = std::to_string(i) + "\n";
    expected += text;
    std::fputs(text.c_str(), output.stream());
  }
  EXPECT_EQ(output.failure(), "");
  std::string found;
  std::thread reader([&] { found = pipe.read_all(); });
  output.finish();
  pipe.close_writer();
  reader.join();
  EXPECT_EQ(found, expected);
}

TEST(OutputStream, LosesTextBeyondTheLimitOfHeldText) {
  SlowPipe pipe;
  std::string reasons;
  OutputStream output(pipe.writer(), _IONBF);
  output.on_failure([&](const std::string& reason) { reasons += reason + "\n"; });
  output.hold_for_slow_readers();
  const std::string text(OutputStream::kMaxHeld / 4, 'x');
  for (int i = 0; i < 6; ++i) std::fputs(text.c_str(), output.stream());
  EXPECT_EQ(reasons, "No buffer space available\n");
  std::thread reader([&] {
    while (!pipe.read_all().empty()) continue;
  });
  output.finish();
  pipe.close_writer();
  reader.join();
}

TEST(OutputStream, KeepsTheFirstFailureAndReportsItOnce) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  std::vector<std::string> reports;
  {
    OutputStream output(full, _IONBF);
    output.on_failure([&](const std::string& reason) { reports.push_back(reason); });
    EXPECT_GE(std::fputs("a", output.stream()), 0);
    EXPECT_EQ(output.failure(), "No space left on device");
    EXPECT_GE(std::fputs("b", output.stream()), 0);
  }
  EXPECT_EQ(reports, std::vector<std::string>{"No space left on device"});
  close(full);
}

TEST(OutputStream, NamesAClosedReaderAndAClosedDescriptor) {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  SlowPipe pipe;
  pipe.close_reader();
  for (const auto& [descriptor, reason] :
       {std::pair(pipe.writer(), "Broken pipe"), std::pair(-1, "Bad file descriptor")}) {
    OutputStream output(descriptor, _IOFBF);
    std::fputs("text", output.stream());
    EXPECT_EQ(output.failure(), "") << "the text is in the buffer";
    output.flush();
    EXPECT_EQ(output.failure(), reason);
  }
  std::signal(SIGPIPE, before);
}

}  // namespace
}  // namespace tessera::base
