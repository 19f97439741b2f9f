// How fast the reductions and copies of reduce/ are, against the bare work of touching the same bytes.
//
// Is: for every number of sources and destinations, in place and apart, of every size, by one thread and by two on
//     disjoint halves: time of a call, bytes read and written in a second, and the time of the floor; then small calls.
// Is not: a test: results are compared in tests/test_reduce.cpp.
//
//   ccl_lab_bench_kernels [--sources 2,4] [--destinations 1,2] [--bytes 65536,1048576] [--threads 1,2] [--dtype float32]
//                         [--isa base|avx2|avx512] [--stores cached|streaming] [--stride BYTES] [--ms MILLISECONDS]
//                         [--only cells|small]
//
// Invariants
//  - The floor of a cell is measured between its rounds, on its buffers: one buffer after the other, read where it is
//    only a source, written where it is only a destination, read and written where it is both. A loop has one stream.
//  - All buffers begin at the same offset within a page, as the segments of ranks do. Their distance is a multiple of a
//    page that AMD's way predictor tells apart; --stride 268435456 shows what happens where it cannot.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/cpu.hpp"
#include "reduce/reduce.hpp"

namespace ccl_lab {
namespace {

struct Options {
  std::vector<std::size_t> sources{1, 2, 3, 4, 5, 8, 16}, destinations{1, 2, 4, 8}, threads{1, 2};
  std::vector<std::size_t> bytes{std::size_t{1} << 16, std::size_t{1} << 20, std::size_t{1} << 24, std::size_t{1} << 26};
  DType dtype = DType::float32;
  Isa isa = best_isa();
  Stores stores = Stores::cached;
  std::size_t stride = 0;
  double round_s = 0.003;
  bool cells = true, small = true;
};

[[noreturn]] void die(const std::string& text) {
  std::fprintf(stderr, "ccl_lab_bench_kernels: %s\n", text.c_str());
  std::exit(2);
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> of) {
  std::nth_element(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2), of.end());
  return of[of.size() / 2];
}

// Threads that start each round together and end it together.
class Gate {
 public:
  explicit Gate(std::size_t n) : n_(n) {}
  void wait() {
    const std::size_t turn = turn_.load(std::memory_order_acquire);
    if (waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_) {
      waiting_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
    } else {
      while (turn_.load(std::memory_order_acquire) == turn) {
      }
    }
  }

 private:
  const std::size_t n_;
  std::atomic<std::size_t> waiting_{0}, turn_{0};
};

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define CCL_WIDEST __attribute__((target_clones("avx512f", "avx2", "default"), noinline))
#else
#define CCL_WIDEST __attribute__((noinline))
#endif
CCL_WIDEST std::uint64_t read_all(const std::uint64_t* from, std::size_t n) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += from[i];
  return sum;
}
CCL_WIDEST void write_all(std::uint64_t* to, std::size_t n, std::uint64_t value) {
  for (std::size_t i = 0; i < n; ++i) to[i] = value + i;
}
CCL_WIDEST void read_and_write_all(std::uint64_t* at, std::size_t n, std::uint64_t value) {
  for (std::size_t i = 0; i < n; ++i) at[i] += value;
}

struct Cell {
  std::size_t n_srcs, n_dsts, bytes, threads;
  bool in_place;
  std::size_t n_buffers() const { return in_place ? std::max(n_srcs, n_dsts) : n_srcs + n_dsts; }
};

// The n-th of the equal parts of every buffer.
struct Part {
  std::vector<std::byte*> dsts;
  std::vector<const std::byte*> srcs;
  std::size_t bytes;
};

class Buffers {
 public:
  Buffers(const Cell& cell, const Options& options) : cell_(cell) {
    stride_ = options.stride ? options.stride : (cell.bytes + 4095) / 4096 * 4096 + 5 * 4096;
    if (stride_ < cell.bytes) die("--stride is " + std::to_string(stride_) + ", expected at least --bytes");
    length_ = stride_ * cell.n_buffers();
    void* const memory =
        ::mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) die("no memory for " + std::to_string(length_) + " bytes; try fewer --sources");
    memory_ = static_cast<std::byte*>(memory);
    for (std::size_t b = 0; b < cell.n_buffers(); ++b) std::memset(memory_ + b * stride_, 0, cell.bytes);
  }
  ~Buffers() { ::munmap(memory_, length_); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  Part part(std::size_t n) const {
    Part part;
    part.bytes = cell_.bytes / cell_.threads / 64 * 64;
    for (std::size_t s = 0; s < cell_.n_srcs; ++s) part.srcs.push_back(memory_ + s * stride_ + n * part.bytes);
    for (std::size_t d = 0; d < cell_.n_dsts; ++d)
      part.dsts.push_back(memory_ + (d + (cell_.in_place ? 0 : cell_.n_srcs)) * stride_ + n * part.bytes);
    return part;
  }

 private:
  Cell cell_;
  std::size_t stride_ = 0, length_ = 0;
  std::byte* memory_ = nullptr;
};

std::atomic<std::uint64_t> sink{0};

void floor_of(const Part& part) {
  const std::size_t n = part.bytes / 8;
  for (const std::byte* src : part.srcs)
    if (std::find(part.dsts.begin(), part.dsts.end(), src) == part.dsts.end())
      sink.fetch_add(read_all(reinterpret_cast<const std::uint64_t*>(src), n), std::memory_order_relaxed);
  for (std::byte* dst : part.dsts) {
    auto* const words = reinterpret_cast<std::uint64_t*>(dst);
    if (std::find(part.srcs.begin(), part.srcs.end(), dst) == part.srcs.end()) write_all(words, n, 1);
    else read_and_write_all(words, n, 0);
  }
}

void call(const Part& part, const Options& options) {
  if (part.srcs.size() == 1)
    copy_to_with(options.isa, part.dsts.data(), part.dsts.size(), part.srcs[0], part.bytes, options.stores);
  else
    reduce_to_with(options.isa, options.dtype, RedOp::sum, part.dsts.data(), part.dsts.size(), part.srcs.data(),
                   part.srcs.size(), part.bytes / itemsize(options.dtype), 1, options.stores);
}

struct Times {
  double kernel_s, floor_s;
};

// Rounds of the kernel and of the floor in turns; medians of the rounds.
Times measure(const Cell& cell, const Options& options) {
  constexpr int kRounds = 9;
  const Buffers buffers(cell, options);
  const double touched = static_cast<double>(cell.bytes) * static_cast<double>(cell.n_srcs + cell.n_dsts);
  const auto repeat = static_cast<int>(std::max(1.0, options.round_s / (touched / 100e9 + 1e-7)));
  Gate gate(cell.threads);
  std::vector<double> kernel, floor;
  const auto work = [&](std::size_t thread) {
    const Part part = buffers.part(thread);
    const auto timed = [&](const std::function<void()>& run) {
      gate.wait();
      const double start = now_s();
      for (int i = 0; i < repeat; ++i) run();
      gate.wait();
      return (now_s() - start) / repeat;
    };
    for (int round = -1; round < kRounds; ++round) {
      const double k = timed([&] { call(part, options); });
      const double f = timed([&] { floor_of(part); });
      if (thread == 0 && round >= 0) kernel.push_back(k), floor.push_back(f);
    }
  };
  std::vector<std::thread> others;
  for (std::size_t thread = 1; thread < cell.threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (std::thread& other : others) other.join();
  return {median(kernel), median(floor)};
}

void measure_cells(const Options& options) {
  std::printf("%7s %5s %9s %10s %7s | %11s %8s | %8s %6s\n", "sources", "dests", "place", "bytes", "threads", "us",
              "GB/s", "floor us", "ratio");
  for (const std::size_t bytes : options.bytes)
    for (const std::size_t n_srcs : options.sources)
      for (const std::size_t n_dsts : options.destinations)
        for (const bool in_place : {true, false})
          for (const std::size_t threads : options.threads) {
            if (in_place && (n_dsts > n_srcs || n_srcs == 1)) continue;
            const Cell cell{n_srcs, n_dsts, bytes, threads, in_place};
            const Times times = measure(cell, options);
            const double moved = static_cast<double>(bytes) * static_cast<double>(n_srcs + n_dsts);
            std::printf("%7zu %5zu %9s %10zu %7zu | %11.3f %8.1f | %8.2f %6.2f\n", n_srcs, n_dsts,
                        in_place ? "in place" : "apart", bytes, threads, times.kernel_s * 1e6,
                        moved / times.kernel_s * 1e-9, times.floor_s * 1e6, times.kernel_s / times.floor_s);
            std::fflush(stdout);
          }
}

// Calls of a few bytes, ns each, sources into one destination apart from them.
void measure_small(const Options& options) {
  constexpr int kCalls = 100000, kRounds = 9;
  std::printf("\n%7s", "bytes");
  for (const std::size_t n_srcs : options.sources) std::printf(" %7zu src", n_srcs);
  std::printf("   (ns a call)\n");
  for (const std::size_t bytes : {8, 16, 24, 64, 128, 200, 256, 512, 1024, 4096}) {
    std::printf("%7zu", bytes);
    for (const std::size_t n_srcs : options.sources) {
      const Buffers buffers({n_srcs, 1, bytes, 1, false}, options);
      Part part = buffers.part(0);
      part.bytes = bytes;
      std::vector<double> rounds;
      for (int round = 0; round < kRounds; ++round) {
        const double start = now_s();
        for (int i = 0; i < kCalls; ++i) call(part, options);
        rounds.push_back((now_s() - start) / kCalls);
      }
      std::printf(" %11.1f", median(rounds) * 1e9);
    }
    std::printf("\n");
  }
}

std::vector<std::size_t> numbers(const std::string& text) {
  std::vector<std::size_t> list;
  for (const char* at = text.c_str(); *at != '\0';) {
    char* end = nullptr;
    list.push_back(std::strtoull(at, &end, 0));
    if (end == at || list.back() == 0) die("expected numbers above 0 with commas between them, found " + text);
    at = *end == ',' ? end + 1 : end;
  }
  return list;
}

template <class T>
T named(const std::string& text, const std::vector<std::pair<std::string, T>>& names) {
  for (const auto& [name, value] : names)
    if (name == text) return value;
  std::string known;
  for (const auto& [name, value] : names) known += " " + name;
  die("unknown value " + text + "; known:" + known);
}

std::vector<std::pair<std::string, DType>> dtype_names() {
  std::vector<std::pair<std::string, DType>> names;
  for (std::size_t d = 0; d < kDTypeCount; ++d) names.emplace_back(kDTypeNames[d], static_cast<DType>(d));
  return names;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string key = argv[i];
    if (i + 1 == argc) die(key + " has no value");
    const std::string value = argv[i + 1];
    if (key == "--sources") options.sources = numbers(value);
    else if (key == "--destinations") options.destinations = numbers(value);
    else if (key == "--bytes") options.bytes = numbers(value);
    else if (key == "--threads") options.threads = numbers(value);
    else if (key == "--stride") options.stride = numbers(value)[0];
    else if (key == "--ms") options.round_s = std::atof(value.c_str()) * 1e-3;
    else if (key == "--dtype") options.dtype = named<DType>(value, dtype_names());
    else if (key == "--isa")
      options.isa = usable_isa(named<Isa>(value, {{"base", Isa::base}, {"avx2", Isa::avx2}, {"avx512", Isa::avx512}}));
    else if (key == "--stores")
      options.stores = named<Stores>(value, {{"cached", Stores::cached}, {"streaming", Stores::streaming}});
    else if (key == "--only")
      options.small = !(options.cells = named<bool>(value, {{"cells", true}, {"small", false}}));
    else
      die("unknown option " + key +
          "; known: --sources --destinations --bytes --threads --dtype --isa --stores --stride --ms --only");
  }
  return options;
}

}  // namespace
}  // namespace ccl_lab

int main(int argc, char** argv) {
  using namespace ccl_lab;
  const Options options = parse(argc, argv);
  const CacheSizes caches = cache_sizes();
  std::printf("%s, %s, caches %zu KiB, %zu KiB, %zu MiB\n", kDTypeNames[static_cast<std::size_t>(options.dtype)],
              isa_name(options.isa), caches.l1 >> 10, caches.l2 >> 10, caches.l3 >> 20);
  if (options.cells) measure_cells(options);
  if (options.small) measure_small(options);
  return 0;
}
