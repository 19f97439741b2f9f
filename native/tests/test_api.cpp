// The public Communicator and how its ranks meet.
//
// Is: ranks as forked processes over the public header, as a program would use it.
// Is not: a test of the algorithms (test_node.cpp): here each collective is called once, plain and registered; what happens
//     when ranks are lost is in test_api_lost.cpp.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <thread>

#include "api_ranks.hpp"
#include "check.hpp"

using namespace ccl_lab;
using namespace ccl_lab::testing;

namespace {

float value(int rank, std::size_t i) { return static_cast<float>(rank * 3 + static_cast<int>(i % 11)); }
float total(int n, std::size_t i) { return static_cast<float>(3 * n * (n - 1) / 2 + n * static_cast<int>(i % 11)); }

struct Buffers {
  Buffers(Communicator& comm, std::size_t elements, bool registered) {
    if (registered) {
      in = comm.empty(elements * sizeof(float));
      out = comm.empty(elements * sizeof(float));
      input = in.as<float>();
      output = out.as<float>();
    } else {
      plain.resize(elements * 2);
      input = plain.data();
      output = plain.data() + elements;
    }
    for (std::size_t i = 0; i < elements; ++i) input[i] = value(comm.rank(), i);
    std::fill(output, output + elements, -1.0f);
  }
  Memory in, out;
  std::vector<float> plain;
  float* input;
  float* output;
};

int every_collective(Communicator& comm, std::size_t count, bool registered) {
  const int n = comm.size();
  const int r = comm.rank();
  const auto ranks = static_cast<std::size_t>(n);
  const DType f32 = DType::float32;
  int wrong = 0;
  const auto expect = [&](bool right) { wrong += right ? 0 : 1; };
  Buffers b(comm, count * ranks, registered);
  comm.all_reduce(b.input, b.output, count, f32);
  for (std::size_t i = 0; i < count; ++i) expect(b.output[i] == total(n, i));
  comm.all_gather(b.input, b.output, count, f32);
  for (std::size_t i = 0; i < count * ranks; ++i) expect(b.output[i] == value(static_cast<int>(i / count), i % count));
  comm.reduce_scatter(b.input, b.output, count, f32);
  for (std::size_t i = 0; i < count; ++i) expect(b.output[i] == total(n, static_cast<std::size_t>(r) * count + i));
  comm.all_to_all(b.input, b.output, count, f32);
  for (std::size_t i = 0; i < count * ranks; ++i)
    expect(b.output[i] == value(static_cast<int>(i / count), static_cast<std::size_t>(r) * count + i % count));
  const int root = n - 1;
  comm.reduce(b.input, b.output, count, f32, RedOp::max, root);
  if (r == root)
    for (std::size_t i = 0; i < count; ++i) expect(b.output[i] == value(n - 1, i));
  comm.gather(b.input, b.output, count, f32, root);
  if (r == root)
    for (std::size_t i = 0; i < count * ranks; ++i) expect(b.output[i] == value(static_cast<int>(i / count), i % count));
  comm.scatter(b.input, b.output, count, f32, root);
  for (std::size_t i = 0; i < count; ++i) expect(b.output[i] == value(root, static_cast<std::size_t>(r) * count + i));
  std::copy(b.input, b.input + count, b.output);
  comm.broadcast(b.output, count, f32, root);
  for (std::size_t i = 0; i < count; ++i) expect(b.output[i] == value(root, i));
  if (n > 1 && r < 2) {
    if (r == 0) comm.send(b.input, count, f32, 1);
    if (r == 1) comm.recv(b.output, count, f32, 0);
    for (std::size_t i = 0; r == 1 && i < count; ++i) expect(b.output[i] == value(0, i));
  }
  comm.barrier();
  comm.all_reduce(b.input, b.input, count, f32);
  for (std::size_t i = 0; i < count; ++i) expect(b.input[i] == total(n, i));
  return wrong;
}

TEST(every_collective_is_exact_on_registered_and_plain_memory) {
  for (const int n : {1, 2, 3, 5})
    for (const bool registered : {true, false}) {
      const auto ends = run_ranks(n, {}, nullptr, [&](Communicator& comm) {
        int wrong = 0;
        for (const std::size_t count : {std::size_t{1}, std::size_t{37}, std::size_t{2500}, std::size_t{150'001}})
          wrong += every_collective(comm, count, registered);
        return wrong == 0 ? 0 : 1;
      });
      if (!all_zero(ends)) std::fprintf(stderr, "n = %d, registered = %d\n", n, registered);
      CHECK(all_zero(ends));
    }
}

// Arrays that begin and end in the middle of pages, and one that has no whole page.
TEST(memory_from_elsewhere_can_be_registered) {
  for (const int n : {2, 3})
    CHECK(all_zero(run_ranks(n, {}, nullptr, [](Communicator& comm) {
      int wrong = 0;
      for (const std::size_t count : {std::size_t{900}, std::size_t{70'001}, std::size_t{1'200'003}}) {
        std::vector<float> in(count + 7);
        std::vector<float> out(count + 7, -1.0f);
        float* const x = in.data() + 3;
        float* const y = out.data() + 5;
        for (std::size_t i = 0; i < count; ++i) x[i] = value(comm.rank(), i);
        comm.register_memory(x, count * sizeof(float));
        comm.register_memory(y, count * sizeof(float));
        wrong += x[0] != value(comm.rank(), 0) || x[count - 1] != value(comm.rank(), count - 1);
        for (int turn = 0; turn < 2; ++turn) {
          comm.all_reduce(x, y, count, DType::float32);
          for (std::size_t i = 0; i < count; ++i) wrong += y[i] != total(comm.size(), i);
          comm.barrier();
          std::fill(y, y + count, 0.0f);
        }
        comm.unregister_memory(x);
        comm.all_reduce(x, y, count, DType::float32);
        for (std::size_t i = 0; i < count; ++i) wrong += y[i] != total(comm.size(), i);
        wrong += out[4] != -1 || out[count + 5] != -1;
        comm.unregister_memory(y);
      }
      try {
        comm.unregister_memory(&wrong);
        return 1;
      } catch (const Error& error) {
        return error.code() == "registration" && wrong == 0 ? 0 : 1;
      }
    })));
}

TEST(ranks_may_be_threads_of_one_process) {
  constexpr int kThreads = 3;
  const Folder folder;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kThreads; ++rank)
    threads.emplace_back([&, rank] {
      try {
        Communicator comm = Communicator::join(rank, kThreads, folder.socket());
        for (const bool registered : {true, false}) wrong += every_collective(comm, 3000, registered);
      } catch (const Error& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
}

TEST(a_child_of_a_rank_may_drop_its_copy) {
  CHECK(all_zero(run_ranks(2, {}, nullptr, [](Communicator& comm) {
    std::vector<int> plain(10'000, comm.rank());
    comm.register_memory(plain.data(), plain.size() * sizeof(int));
    const pid_t child = start([&] {
      { const Communicator dropped = std::move(comm); }
      return plain[9'999];
    });
    if (end_of(child) != comm.rank()) return 1;
    ::usleep(250'000);  // the other's watch has looked
    comm.all_reduce(plain.data(), plain.data(), plain.size(), DType::int32);
    comm.unregister_memory(plain.data());
    return plain[9'999] == 1 ? 0 : 2;
  })));
}

TEST(many_ranks_join) {
  Options options;
  options.arena_bytes = std::uint64_t{1} << 30;  // 64 of them fit also beside the shadow memory of a sanitizer
  CHECK(all_zero(run_ranks(64, options, nullptr, [](Communicator& comm) {
    std::int64_t sum = comm.rank();
    comm.all_reduce(&sum, &sum, 1, DType::int64);
    comm.barrier();
    return sum == 64 * 63 / 2 ? 0 : 1;
  })));
}

TEST(memory_outlives_its_communicator) {
  CHECK(all_zero(run_ranks(2, {}, nullptr, [](Communicator& comm) {
    Memory kept = comm.empty(1 << 20);
    kept.as<int>()[77] = 5;
    Communicator moved = std::move(comm);
    moved.barrier();
    { const Communicator gone = std::move(moved); }
    return kept.as<int>()[77] == 5 && kept.nbytes() == 1 << 20 ? 0 : 1;
  })));
}

TEST(memory_use_counts_what_is_registered_and_moved) {
  CHECK(all_zero(run_ranks(2, {}, nullptr, [](Communicator& comm) {
    const Memory memory = comm.empty(4 << 20);
    const MemoryUse before = comm.memory_use();
    comm.all_reduce(memory.data(), memory.data(), 1 << 20, DType::float32);
    comm.barrier();
    const MemoryUse after = comm.memory_use();
    std::uint64_t moved[2] = {after.read_bytes - before.read_bytes, after.written_bytes - before.written_bytes};
    comm.all_reduce(moved, moved, 2, DType::int64);
    const bool right = before.registered_bytes == 4 << 20 && after.overhead_bytes < 1 << 20 && after.overhead_bytes > 0 &&
                       moved[0] == 2 * (4 << 20) && moved[1] == 2 * (4 << 20);
    if (!right)
      std::fprintf(stderr, "registered %llu, overhead %llu, read %llu, written %llu\n",
                   static_cast<unsigned long long>(before.registered_bytes), static_cast<unsigned long long>(after.overhead_bytes),
                   static_cast<unsigned long long>(moved[0]), static_cast<unsigned long long>(moved[1]));
    return right ? 0 : 1;
  })));
}

TEST(spans_are_kept_where_asked_for) {
  Options options;
  options.trace_spans = 1000;  // any number: the ring has the next power of two
  CHECK(all_zero(run_ranks(2, options, nullptr, [](Communicator& comm) {
    float x = 1;
    for (int i = 0; i < 3; ++i) comm.all_reduce(&x, &x, 1, DType::float32);
    SpanRecord spans[64];
    const std::size_t n = comm.take_spans(spans, 64);
    int collectives = 0;
    for (std::size_t i = 0; i < n; ++i)
      collectives += spans[i].kind == static_cast<std::uint8_t>(SpanKind::collective) && spans[i].end_ns >= spans[i].begin_ns;
    return collectives == 3 && comm.dropped_spans() == 0 ? 0 : 1;
  })));
}

TEST(a_rank_that_never_comes_is_named) {
  const Folder folder;
  const Reports reports;
  Options options;
  options.start_timeout_s = 0.5;
  std::vector<pid_t> children;
  for (const int rank : {0, 1, 3})
    children.push_back(start([&] {
      return as_rank(rank, 4, folder.socket(), options, &reports, [](Communicator&) { return 0; });
    }));
  for (const pid_t child : children) CHECK_EQ(end_of(child), 9);
  for (const int rank : {0, 1, 3}) {
    CHECK(reports.has(rank, "timeout", "missing rank 2"));
    CHECK_EQ(reports.of[rank].culprit.load(), 2);
  }
}

TEST(without_rank_0_the_others_say_so) {
  const Folder folder;
  const Reports reports;
  Options options;
  options.start_timeout_s = 0.2;
  const pid_t child =
      start([&] { return as_rank(1, 2, folder.socket(), options, &reports, [](Communicator&) { return 0; }); });
  CHECK_EQ(end_of(child), 9);
  CHECK(reports.has(1, "timeout", "rank 0 is missing"));
}

TEST(a_second_rank_of_the_same_number_is_refused_and_the_job_goes_on) {
  const Folder folder;
  const Reports reports;
  const auto rank = [&](int number, const Reports* where) {
    return start([&, number, where] {
      return as_rank(number, 3, folder.socket(), {}, where, [](Communicator& comm) {
        comm.barrier();
        return 0;
      });
    });
  };
  const pid_t zero = rank(0, nullptr);
  const pid_t one = rank(1, nullptr);
  ::usleep(100'000);
  const pid_t again = rank(1, &reports);
  CHECK_EQ(end_of(again), 9);
  CHECK(reports.has(1, "usage", "joined"));
  const pid_t host_again = rank(0, &reports);
  CHECK_EQ(end_of(host_again), 9);
  CHECK(reports.has(0, "usage", "another rank 0 listens"));
  const pid_t two = rank(2, nullptr);
  for (const pid_t child : {zero, one, two}) CHECK_EQ(end_of(child), 0);
}

TEST(different_numbers_of_ranks_are_named_everywhere) {
  const Folder folder;
  const Reports reports;
  const pid_t zero = start([&] { return as_rank(0, 3, folder.socket(), {}, &reports, [](Communicator&) { return 0; }); });
  const pid_t one = start([&] { return as_rank(1, 3, folder.socket(), {}, &reports, [](Communicator&) { return 0; }); });
  ::usleep(50'000);
  const pid_t two = start([&] { return as_rank(2, 8, folder.socket(), {}, &reports, [](Communicator&) { return 0; }); });
  for (const pid_t child : {zero, one, two}) CHECK_EQ(end_of(child), 9);
  for (const int rank : {0, 1, 2}) {
    CHECK(reports.has(rank, "config", "for 8 ranks, rank 0 for 3"));
    CHECK_EQ(reports.of[rank].culprit.load(), 2);
  }
}

TEST(a_socket_left_by_a_killed_rank_0_is_replaced) {
  const Folder folder;
  Options options;
  const pid_t killed = start([&] { return as_rank(0, 2, folder.socket(), options, nullptr, [](Communicator&) { return 0; }); });
  struct stat found {};
  for (int i = 0; i < 2000 && ::stat(folder.socket().c_str(), &found) != 0; ++i) ::usleep(1000);
  CHECK_EQ(found.st_mode & 0777, 0600u);
  ::kill(killed, SIGKILL);
  CHECK_EQ(end_of(killed), 128 + SIGKILL);
  CHECK_EQ(::stat(folder.socket().c_str(), &found), 0);
  std::vector<pid_t> children;
  for (const int rank : {1, 0})
    children.push_back(start([&] {
      return as_rank(rank, 2, folder.socket(), options, nullptr, [](Communicator& comm) {
        comm.barrier();
        return 0;
      });
    }));
  for (const pid_t child : children) CHECK_EQ(end_of(child), 0);
}

TEST(a_file_in_the_way_is_not_removed) {
  const Folder folder;
  const Reports reports;
  const int fd = ::open(folder.socket().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  ::close(fd);
  const pid_t child = start([&] { return as_rank(0, 2, folder.socket(), {}, &reports, [](Communicator&) { return 0; }); });
  CHECK_EQ(end_of(child), 9);
  CHECK(reports.has(0, "config", "is no socket"));
  CHECK_EQ(::unlink(folder.socket().c_str()), 0);
}

TEST(strangers_at_the_socket_change_nothing) {
  const Folder folder;
  const pid_t zero = start([&] {
    return as_rank(0, 2, folder.socket(), {}, nullptr, [](Communicator& comm) {
      comm.barrier();
      return 0;
    });
  });
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", folder.socket().c_str());
  std::vector<int> sockets;
  for (int i = 0; i < 3; ++i) {
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    for (int turn = 0; turn < 2000; ++turn) {
      if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) break;
      ::usleep(1000);
    }
    sockets.push_back(fd);
  }
  CHECK(::send(sockets[0], "hello?", 6, MSG_NOSIGNAL) == 6);
  ::close(sockets[1]);
  const pid_t one = start([&] {
    return as_rank(1, 2, folder.socket(), {}, nullptr, [](Communicator& comm) {
      comm.barrier();
      return 0;
    });
  });
  CHECK_EQ(end_of(zero), 0);
  CHECK_EQ(end_of(one), 0);
  ::close(sockets[0]);
  ::close(sockets[2]);
}

TEST(a_rank_that_dies_before_all_have_joined_ends_the_others) {
  const Folder folder;
  const Reports reports;
  const pid_t zero = start([&] { return as_rank(0, 3, folder.socket(), {}, &reports, [](Communicator&) { return 0; }); });
  const pid_t one = start([&] { return as_rank(1, 3, folder.socket(), {}, &reports, [](Communicator&) { return 0; }); });
  ::usleep(200'000);
  ::kill(one, SIGKILL);
  CHECK_EQ(end_of(one), 128 + SIGKILL);
  CHECK_EQ(end_of(zero), 9);
  CHECK(reports.has(0, "peer_lost", "rank 1"));
}

}  // namespace
