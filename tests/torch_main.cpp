// main() of the tests that link libtorch: ends without exit-time destructors, as apps/tessera.cpp does and for its
// reason.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int code = RUN_ALL_TESTS();
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}
