// Ranks as forked processes over the public Communicator, for its tests.
//
// Is: a folder for the socket, run_ranks, and reports of what a rank's Error said.
// Is not: a launcher; a rank that hangs is ended by its alarm.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "ccl_lab/communicator.hpp"

namespace ccl_lab::testing {

// A folder of this test's own, for sockets.
struct Folder {
  Folder() { ok = ::mkdtemp(path) != nullptr; }
  ~Folder() { ::rmdir(path); }
  std::string socket() const { return std::string(path) + "/meet.sock"; }
  char path[32] = "/tmp/ccl_lab_test_XXXXXX";
  bool ok = false;
};

// What ranks tell the test about themselves.
struct Report {
  std::atomic<int> flag;
  std::atomic<int> culprit;
  char code[32];
  char text[1024];
};
struct Reports {
  Reports() {
    void* memory = ::mmap(nullptr, sizeof(Report) * 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    of = static_cast<Report*>(memory);
  }
  ~Reports() { ::munmap(of, sizeof(Report) * 64); }
  void say(int rank, const Error& error) const {
    of[rank].culprit = error.rank();
    std::snprintf(of[rank].code, sizeof of[rank].code, "%s", std::string(error.code()).c_str());
    std::snprintf(of[rank].text, sizeof of[rank].text, "%s", error.what());
  }
  bool has(int rank, const char* code, const char* words) const {
    const bool found = std::strcmp(of[rank].code, code) == 0 && std::strstr(of[rank].text, words) != nullptr;
    if (!found) std::fprintf(stderr, "rank %d says %s: %s\n", rank, of[rank].code, of[rank].text);
    return found;
  }
  Report* of;
};

inline pid_t start(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(50);
    ::_exit(body());
  }
  return child;
}

// Exit status, or 128 + signal.
inline int end_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

using Body = std::function<int(Communicator&)>;

inline int as_rank(int rank, int n, const std::string& path, const Options& options, const Reports* reports, const Body& body) {
  try {
    Communicator comm = Communicator::join(rank, n, path, options);
    return body(comm);
  } catch (const Error& error) {
    if (reports != nullptr) reports->say(rank, error);
    else std::fprintf(stderr, "rank %d: %s: %s\n", rank, std::string(error.code()).c_str(), error.what());
    return 9;
  }
}

// Runs `body` on n ranks; their exit statuses.
inline std::vector<int> run_ranks(int n, const Options& options, const Reports* reports, const Body& body) {
  const Folder folder;
  std::vector<pid_t> children;
  for (int rank = 0; rank < n; ++rank)
    children.push_back(start([&] { return as_rank(rank, n, folder.socket(), options, reports, body); }));
  std::vector<int> ends;
  for (const pid_t child : children) ends.push_back(end_of(child));
  struct stat left {};
  if (::stat(folder.socket().c_str(), &left) == 0) ends.push_back(77);  // the socket is to be gone
  return ends;
}

inline bool all_zero(const std::vector<int>& ends) {
  for (const int end : ends)
    if (end != 0) return false;
  return true;
}

}  // namespace ccl_lab::testing
