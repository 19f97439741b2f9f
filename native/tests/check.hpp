// The test harness of the native code.
//
// Is: TEST(name) { ... }, CHECK(condition), CHECK_EQ(a, b), CHECK_OK(status) and a main that runs all tests of a binary,
//     or only those whose names contain an argument. It is included in one source file of a test binary; a second one
//     defines CCL_LAB_NO_TEST_MAIN first.
// Is not: a framework: no fixtures, no parameters; a loop in a test does that.
//
// Invariants
//  - A failed check is printed with file, line and values, and the test goes on; the exit status says whether any failed.
#pragma once

#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace ccl_lab::check {

struct Case {
  const char* name;
  void (*run)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
inline int& failures() {
  static int count = 0;
  return count;
}
struct Register {
  Register(const char* name, void (*run)()) { cases().push_back({name, run}); }
};

inline void fail(const char* file, int line, const std::string& text) {
  ++failures();
  std::fprintf(stderr, "%s:%d: %s\n", file, line, text.c_str());
}

template <class T>
std::string show(const T& value) {
  if constexpr (requires(std::ostringstream& out) { out << value; }) {
    std::ostringstream out;
    out << value;
    return out.str();
  } else if constexpr (requires { static_cast<long long>(value); }) {
    return std::to_string(static_cast<long long>(value));
  } else {
    return "?";
  }
}

inline int run_all(int argc, char** argv) {
  int passed = 0;
  int failed = 0;
  for (const Case& test : cases()) {
    bool wanted = argc < 2;
    for (int i = 1; i < argc; ++i) wanted = wanted || std::strstr(test.name, argv[i]) != nullptr;
    if (!wanted) continue;
    const int before = failures();
    test.run();
    if (failures() == before) {
      ++passed;
    } else {
      ++failed;
      std::fprintf(stderr, "FAILED %s\n", test.name);
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace ccl_lab::check

#define TEST(name)                                                          \
  static void test_##name();                                                \
  static const ::ccl_lab::check::Register register_##name(#name, &test_##name); \
  static void test_##name()

#define CHECK(condition)                                                                          \
  do {                                                                                            \
    if (!(condition)) ::ccl_lab::check::fail(__FILE__, __LINE__, "CHECK(" #condition ") is false"); \
  } while (false)

#define CHECK_EQ(left, right)                                                                            \
  do {                                                                                                   \
    const auto check_left = (left);                                                                      \
    const auto check_right = (right);                                                                    \
    if (!(check_left == check_right))                                                                    \
      ::ccl_lab::check::fail(__FILE__, __LINE__, "CHECK_EQ(" #left ", " #right "): " +                   \
                                                     ::ccl_lab::check::show(check_left) + " and " +      \
                                                     ::ccl_lab::check::show(check_right));               \
  } while (false)

#define CHECK_OK(expression)                                                                      \
  do {                                                                                            \
    const auto check_status = (expression);                                                       \
    if (!check_status.ok())                                                                       \
      ::ccl_lab::check::fail(__FILE__, __LINE__, "CHECK_OK(" #expression "): " + check_status.message); \
  } while (false)

#ifndef CCL_LAB_NO_TEST_MAIN
int main(int argc, char** argv) { return ::ccl_lab::check::run_all(argc, argv); }
#endif
