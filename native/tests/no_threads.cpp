// Preloaded by test programs that are not built with the thread sanitizer: starting a thread ends them.
// Is: a pthread_create that never returns. Is not: of a build with a sanitizer, which has its own.
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) noexcept {
  constexpr std::string_view why = "this test starts a thread: name it among `threaded` in native/tests/CMakeLists.txt\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, why.data(), why.size());
  std::abort();
}
