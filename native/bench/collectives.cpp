// What our collectives take, measured as every peer is measured.
//
// Is: N ranks forked from here that join by the public API, and the cells that bench_core.h runs on them.
// Is not: the protocol (bench_core.h, shared by all peers) or a comparison (`ccl-lab bench`).
//
//   ccl_lab_bench --ranks N --ops a,b --bytes 8,1024,... --buffers plain|staged|registered [--batches B] [--batch-ms M]
//                 [--min-iters 3] [--in-place 0|1] [--trace 0|1]
//   ccl_lab_bench --startup N      seconds from the first fork to the first all_reduce done
//   ccl_lab_bench --ranks N --memory --bytes ...
//
// prints one JSON object a line. Exit status 1: a rank failed, and said why on stderr.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ccl_lab/communicator.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wdeprecated-enum-float-conversion"
#include "bench_core.h"
#pragma GCC diagnostic pop

namespace {

using ccl_lab::Communicator;
using ccl_lab::DType;
using ccl_lab::RedOp;

std::optional<Communicator> comm;
std::map<float*, ccl_lab::Memory> memories;
Library lib;

void ping_pong(float* data, std::size_t count) {
  const int peer = lib.rank ^ 1;
  if (peer >= lib.size) return;
  if (lib.rank < peer) {
    comm->send(data, count, DType::float32, peer);
    comm->recv(data, count, DType::float32, peer);
  } else {
    comm->recv(data, count, DType::float32, peer);
    comm->send(data, count, DType::float32, peer);
  }
}

int call(Op op, int in_place, float* input, float* output, std::size_t count) {
  const float* source = in_place != 0 && op == ALL_TO_ALL ? output : input;
  switch (op) {
    case ALL_REDUCE: comm->all_reduce(source, output, count, DType::float32); break;
    case ALL_GATHER: comm->all_gather(source, output, count, DType::float32); break;
    case REDUCE_SCATTER: comm->reduce_scatter(source, output, count, DType::float32); break;
    case ALL_TO_ALL: comm->all_to_all(source, output, count, DType::float32); break;
    case BROADCAST: comm->broadcast(output, count, DType::float32); break;
    case PING_PONG: ping_pong(output, count); break;
    case BARRIER: comm->barrier(); break;
    default: return 0;
  }
  return 1;
}

double max_over_ranks(double value) {
  double found = 0;
  comm->all_reduce(&value, &found, 1, DType::float64, RedOp::max);
  return found;
}

void wait_for_all() { comm->barrier(); }

float* allocate(std::size_t bytes) {
  ccl_lab::Memory memory = comm->empty(bytes);
  auto* const data = memory.as<float>();
  memories.emplace(data, std::move(memory));
  return data;
}

void release(float* memory) { memories.erase(memory); }

// The words that are not bench_core.h's.
struct Own {
  int ranks = 2;
  bool startup = false;
  bool registered = true;
  bool staged = false;  // ordinary buffers, which the library may not register
  bool trace = false;
};

Own take_own(std::vector<char*>& words) {
  Own own;
  const auto value_of_word = [&](std::size_t at) -> std::string {
    if (at + 1 < words.size()) return words[at + 1];
    std::fprintf(stderr, "ccl_lab_bench: %s needs a value\n", words[at]);
    std::exit(2);
  };
  std::vector<char*> rest{words[0]};
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string word = words[i];
    if (word == "--startup") {
      own.startup = true;
      rest.push_back(words[i]);
      if (i + 1 < words.size() && std::isdigit(static_cast<unsigned char>(*words[i + 1])) != 0) own.ranks = std::atoi(words[++i]);
    } else if (word == "--ranks") {
      own.ranks = std::atoi(value_of_word(i++).c_str());
    } else if (word == "--trace") {
      own.trace = value_of_word(i++) == "1";
    } else if (word == "--buffers") {
      const std::string kind = value_of_word(i++);
      own.registered = kind == "registered";
      own.staged = kind == "staged";
      if (own.registered || own.staged || kind == "plain") continue;
      std::fprintf(stderr, "ccl_lab_bench: --buffers is plain, staged or registered, not %s\n", kind.c_str());
      std::exit(2);
    } else {
      rest.push_back(words[i]);
    }
  }
  if (own.ranks < 1 || own.ranks > 256) {
    std::fprintf(stderr, "ccl_lab_bench: --ranks %d: expected 1 to 256\n", own.ranks);
    std::exit(2);
  }
  words = rest;
  return own;
}

int run_rank(int rank, const Own& own, const Arguments& arguments, const std::string& rendezvous, double begin_s) {
  bare_process_bytes = private_bytes();  // a fork's, not its parent's
  try {
    ccl_lab::Options options;
    options.timeout_s = 60;
    options.register_buffers = !own.staged;
    options.trace_spans = own.trace ? 1u << 16 : 0;
    comm.emplace(Communicator::join(rank, own.ranks, rendezvous, options));
    lib.rank = rank;
    lib.size = own.ranks;
    lib.call = call;
    lib.max_over_ranks = max_over_ranks;
    lib.wait_for_all = wait_for_all;
    if (own.registered) {
      lib.allocate = allocate;
      lib.release = release;
    }
    run_all(&lib, &arguments);
    if (own.startup && rank == 0) {
      std::printf("{\"startup_s\": %.6f, \"ranks\": %d}\n", seconds() - begin_s, own.ranks);
      std::fflush(stdout);
    }
    comm->barrier();
    memories.clear();
    comm.reset();
    return 0;
  } catch (const ccl_lab::Error& error) {
    std::fprintf(stderr, "ccl_lab_bench: rank %d: %s: %s\n", rank, std::string(error.code()).c_str(), error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> words(argv, argv + argc);
  const Own own = take_own(words);
  const Arguments arguments = parse(static_cast<int>(words.size()), words.data());
  const char* folder = std::getenv("TMPDIR");
  const std::string rendezvous =
      std::string(folder != nullptr ? folder : "/tmp") + "/ccl_lab_bench." + std::to_string(::getpid()) + ".sock";
  const double begin_s = seconds();
  std::vector<pid_t> children;
  for (int rank = 0; rank < own.ranks; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) {
      std::perror("ccl_lab_bench: fork");
      for (const pid_t started : children) ::kill(started, SIGKILL);
      return 1;
    }
    if (child == 0) ::_exit(run_rank(rank, own, arguments, rendezvous, begin_s));
    children.push_back(child);
  }
  bool all = true;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    const bool ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (WIFSIGNALED(status)) std::fprintf(stderr, "ccl_lab_bench: a rank ended by signal %d\n", WTERMSIG(status));
    all = all && ended_well;
  }
  return all ? 0 : 1;
}
