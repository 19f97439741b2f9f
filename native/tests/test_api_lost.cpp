// What a rank hears when another dies, leaves, hangs or calls something else; and what launchers say.
//
// Is: killed, stopped and leaving processes over the public header; variables of launchers.
// Is not: timed: "soon" is far below the deadline that would end the wait otherwise.
#include <map>

#include "api/launcher.hpp"
#include "api/watch.hpp"
#include "api_ranks.hpp"
#include "base/clock.hpp"
#include "check.hpp"

using namespace ccl_lab;
using namespace ccl_lab::testing;

namespace {

constexpr std::size_t kMany = 1 << 20;

// Rank `victim` ends as `end` says, the others go on with `body`; true if all of them hear of it by name and soon.
bool heard(int n, int victim, const char* code, const char* words, const std::function<void(Communicator&)>& end,
           const std::function<void(Communicator&)>& body) {
  const Reports reports;
  const std::int64_t begin = now_ns();
  const auto ends = run_ranks(n, {}, &reports, [&](Communicator& comm) {
    comm.barrier();
    if (comm.rank() == victim) {
      end(comm);
      return 0;
    }
    body(comm);
    return 0;
  });
  bool all = now_ns() - begin < 20'000'000'000;
  for (int rank = 0; rank < n; ++rank) {
    if (rank == victim) continue;
    all = all && ends[static_cast<std::size_t>(rank)] == 9 && reports.has(rank, code, words) &&
          reports.of[rank].culprit == victim;
  }
  return all;
}

void die(Communicator&) { ::raise(SIGKILL); }
void leave(Communicator& comm) { const Communicator gone = std::move(comm); }

void reduce_on(Communicator& comm, std::size_t count, bool registered) {
  Memory memory = comm.empty(count * sizeof(float));
  std::vector<float> plain(count);
  float* const x = registered ? memory.as<float>() : plain.data();
  for (int i = 0; i < 1000; ++i) comm.all_reduce(x, x, count, DType::float32);
}

TEST(a_killed_rank_is_named_in_small_and_large_collectives) {
  CHECK(heard(3, 1, "peer_lost", "rank 1 (process", die, [](Communicator& comm) { reduce_on(comm, 1, true); }));
  CHECK(heard(3, 0, "peer_lost", "rank 0 (process", die, [](Communicator& comm) { reduce_on(comm, kMany, true); }));
  CHECK(heard(2, 1, "peer_lost", "rank 1 (process", die, [](Communicator& comm) { reduce_on(comm, kMany, false); }));
}

TEST(a_rank_killed_in_the_middle_is_named) {
  const Reports reports;
  const auto ends = run_ranks(3, {}, &reports, [](Communicator& comm) {
    if (comm.rank() == 2) {
      const pid_t self = ::getpid();
      if (::fork() == 0) {  // from outside, at some moment of some collective
        ::usleep(300'000);
        ::kill(self, SIGKILL);
        ::_exit(0);
      }
    }
    Memory memory = comm.empty(kMany * sizeof(float));
    for (;;) comm.all_reduce(memory.data(), memory.data(), kMany, DType::float32);
    return 0;
  });
  CHECK_EQ(ends[2], 128 + SIGKILL);
  for (const int rank : {0, 1}) {
    CHECK_EQ(ends[static_cast<std::size_t>(rank)], 9);
    CHECK(reports.has(rank, "peer_lost", "rank 2 (process"));
  }
}

TEST(a_rank_that_left_is_named_by_those_who_wait_for_it) {
  CHECK(heard(3, 2, "peer_lost", "left its communicator", leave, [](Communicator& comm) { comm.barrier(); }));
  CHECK(heard(2, 0, "peer_lost", "in a send or recv", leave, [](Communicator& comm) {
    float x = 0;
    comm.recv(&x, 1, DType::float32, 0);
  }));
}

TEST(a_rank_that_gave_up_hands_on_why) {
  const Reports reports;
  const auto ends = run_ranks(3, {}, &reports, [](Communicator& comm) {
    comm.barrier();
    if (comm.rank() == 2) ::raise(SIGKILL);
    if (comm.rank() == 1) {
      while (true) comm.barrier();  // hears of rank 2 and leaves
    }
    ::usleep(500'000);
    comm.barrier();
    return 0;
  });
  CHECK_EQ(ends[2], 128 + SIGKILL);
  for (const int rank : {0, 1}) {
    CHECK(reports.has(rank, "peer_lost", "rank 2 (process"));
    CHECK_EQ(reports.of[rank].culprit.load(), 2);
  }
}

TEST(leaving_early_disturbs_nobody_who_needs_no_more) {
  for (int turn = 0; turn < 5; ++turn)
    CHECK(all_zero(run_ranks(4, {}, nullptr, [](Communicator& comm) {
      Memory memory = comm.empty(kMany * sizeof(float));
      comm.all_reduce(memory.data(), memory.data(), kMany, DType::float32);
      int word = comm.rank();
      if (comm.rank() == 0) comm.send(&word, 1, DType::int32, 3);
      if (comm.rank() < 2) return 0;
      // The watch has had several turns to see that ranks 0 and 1 are gone.
      ::usleep(static_cast<useconds_t>(3 * api::Watch::kTurnNs / 1000));
      if (comm.rank() == 3) {
        comm.recv(&word, 1, DType::int32, 0);
        comm.send(&word, 1, DType::int32, 2);
        return word;
      }
      comm.recv(&word, 1, DType::int32, 3);
      return word;
    })));
}

TEST(a_stopped_rank_ends_in_a_timeout_that_names_it) {
  const Reports reports;
  Options options;
  options.timeout_s = 0.5;
  const Folder folder;
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank)
    children.push_back(start([&, rank] {
      return as_rank(rank, 3, folder.socket(), options, &reports, [&](Communicator& comm) {
        comm.barrier();
        if (comm.rank() == 1) ::raise(SIGSTOP);
        comm.barrier();
        return 0;
      });
    }));
  for (const int rank : {0, 2}) {
    CHECK_EQ(end_of(children[static_cast<std::size_t>(rank)]), 9);
    CHECK(reports.has(rank, "timeout", "not entered by rank 1"));
    CHECK_EQ(reports.of[rank].culprit.load(), 1);
  }
  ::kill(children[1], SIGCONT);
  // The others had entered before it woke up: it finds their entries, or that they have left.
  const int late = end_of(children[1]);
  CHECK(late == 0 || late == 9);
}

TEST(different_calls_are_shown_to_all) {
  for (const std::size_t count : {std::size_t{1}, kMany}) {
    const Reports reports;
    const auto ends = run_ranks(2, {}, &reports, [&](Communicator& comm) {
      std::vector<float> x(count + 1);
      comm.all_reduce(x.data(), x.data(), count + static_cast<std::size_t>(comm.rank()), DType::float32);
      return 0;
    });
    for (const int rank : {0, 1}) {
      CHECK_EQ(ends[static_cast<std::size_t>(rank)], 9);
      CHECK(reports.has(rank, "shape", "different collectives"));
    }
  }
}

TEST(a_broken_communicator_says_why_again) {
  const auto ends = run_ranks(2, {}, nullptr, [](Communicator& comm) {
    comm.barrier();
    if (comm.rank() == 1) ::raise(SIGKILL);
    for (int turn = 0; turn < 2; ++turn) {
      try {
        comm.barrier();
        return 1;
      } catch (const Error& error) {
        if (error.code() != "peer_lost" || error.rank() != 1) return 2;
      }
    }
    return 0;
  });
  CHECK_EQ(ends[0], 0);
}

TEST(wrong_arguments_are_refused_and_break_nothing) {
  CHECK(all_zero(run_ranks(2, {}, nullptr, [](Communicator& comm) {
    int refused = 0;
    float x[4] = {1, 2, 3, 4};
    const auto refuses = [&](const char* code, const std::function<void()>& call) {
      try {
        call();
      } catch (const Error& error) {
        refused += error.code() == code;
      }
    };
    refuses("usage", [&] { comm.broadcast(x, 4, DType::float32, 2); });
    refuses("usage", [&] { comm.broadcast(x, 4, DType::float32, -1); });
    refuses("usage", [&] { comm.send(x, 4, DType::float32, comm.rank()); });
    refuses("usage", [&] { comm.recv(x, 4, DType::float32, 7); });
    refuses("dtype", [&] { comm.all_reduce(x, x, 4, static_cast<DType>(99)); });
    refuses("shape", [&] { comm.all_reduce(x, x, static_cast<std::size_t>(-4), DType::float32); });
    refuses("dtype", [&] { comm.all_reduce(x, x, 4, DType::float32, RedOp::band); });
    refuses("usage", [&] { comm.all_reduce(nullptr, x, 4, DType::float32); });
    refuses("usage", [&] { comm.all_gather(x, nullptr, 2, DType::float32); });
    refuses("registration", [&] { comm.empty(std::size_t{1} << 50); });
    comm.all_reduce(x, x, 4, DType::float32);
    return refused == 10 && x[3] == 8 ? 0 : refused + 1;
  })));
}

TEST(arguments_of_join_are_checked) {
  const auto code = [](int rank, int n, const char* path) {
    try {
      Communicator::join(rank, n, path);
    } catch (const Error& error) {
      return std::string(error.code());
    }
    return std::string("joined");
  };
  CHECK_EQ(code(2, 2, "/tmp/x.sock"), "config");
  CHECK_EQ(code(0, 0, "/tmp/x.sock"), "config");
  CHECK_EQ(code(0, 2, ""), "config");
  CHECK_EQ(code(0, 2, std::string(200, 'x').c_str()), "config");
  CHECK_EQ(code(0, 2, "/nowhere/at/all.sock"), "connect");
  CHECK_EQ(code(0, 1, ""), "joined");
}

TEST(a_process_that_ended_is_seen_also_before_it_is_waited_for) {
  CHECK(api::process_lives(::getpid()));
  const pid_t child = start([] { return 0; });
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  CHECK(!api::process_lives(child));
  CHECK_EQ(end_of(child), 0);
  CHECK(!api::process_lives(child));
}

Result<api::Launch> launch(std::map<std::string, std::string> variables) {
  return api::find_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(launchers_are_recognised) {
  const auto ours = launch({{"CCL_LAB_RANK", "3"}, {"CCL_LAB_WORLD_SIZE", "4"}, {"CCL_LAB_RENDEZVOUS", "/tmp/a/b.sock"}});
  CHECK(ours.ok() && ours.value().rank == 3 && ours.value().n_ranks == 4 && ours.value().rendezvous == "/tmp/a/b.sock");
  const auto torchrun = launch({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"},
                                {"MASTER_PORT", "29500"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "9"}});
  CHECK(torchrun.ok() && torchrun.value().rank == 1 && torchrun.value().n_ranks == 2);
  CHECK(torchrun.ok() && torchrun.value().rendezvous.find("localhost-29500.sock") != std::string::npos);
  const auto ompi = launch({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "8"}});
  CHECK(ompi.ok() && ompi.value().n_ranks == 8);
  const auto mpich = launch({{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALNRANKS", "8"}});
  CHECK(mpich.ok() && mpich.value().rank == 5 && mpich.value().rendezvous == ompi.value().rendezvous);
  const auto srun = launch({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_NNODES", "1"}});
  CHECK(srun.ok() && srun.value().rank == 1);
}

TEST(what_a_launcher_leaves_out_or_contradicts_is_named) {
  const auto refused = [](const Result<api::Launch>& found, Code code, const char* words) {
    const bool as_expected = !found.ok() && found.status().code == code && found.status().message.find(words) != std::string::npos;
    if (!as_expected) std::fprintf(stderr, "%s: %s\n", code_name(found.status().code), found.status().message.c_str());
    return as_expected;
  };
  CHECK(refused(launch({}), Code::usage, "no launcher"));
  CHECK(refused(launch({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}), Code::usage, "no launcher"));
  CHECK(refused(launch({{"CCL_LAB_RANK", "0"}}), Code::config, "CCL_LAB_WORLD_SIZE"));
  CHECK(refused(launch({{"CCL_LAB_RANK", "0"}, {"CCL_LAB_WORLD_SIZE", "2"}}), Code::config, "CCL_LAB_RENDEZVOUS"));
  CHECK(refused(launch({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), Code::config, "not a whole number"));
  CHECK(refused(launch({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), Code::config, "0 <= rank < size"));
  CHECK(refused(launch({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}),
                Code::unsupported, "ccl_lab.init()"));
  CHECK(refused(launch({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_NNODES", "2"}}), Code::unsupported, "hosts"));
}

}  // namespace
