// The main() of the tests that link libtorch. It exits without running exit-time destructors, for the reason in
// apps/tessera.cpp.
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
