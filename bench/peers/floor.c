/* What this machine gives with nothing above it: the floor every ratio of the bench is told against.
 *
 * Is: cache line to the other core and back, memcpy, the sum kernel, a loopback socket; one line of JSON.
 * Is not: tuned to win; plain C at -O3 for this processor. `--quick` measures the cache line alone (it labels a round).
 * Invariants: the two threads run on different cores; times are medians of batches.
 */
#include "cache_line.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 9 };

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double median(double* values, int n) {
  qsort(values, (size_t)n, sizeof *values, compare);
  return values[n / 2];
}

/* The turn-th core of those this process may use. */
static int pin(int turn) {
  cpu_set_t may, one;
  CPU_ZERO(&may);
  if (sched_getaffinity(0, sizeof may, &may) || CPU_COUNT(&may) == 0) return 0;
  int left = turn % CPU_COUNT(&may);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &may) || left-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return pthread_setaffinity_np(pthread_self(), sizeof one, &one) == 0;
  }
  return 0;
}

static cpu_set_t all_cores;

static char* pages(size_t bytes) {
  const size_t huge = (size_t)2 << 20;
  char* raw = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) exit(3);
  raw += (huge - (uintptr_t)raw % huge) % huge;
  madvise(raw, bytes, MADV_HUGEPAGE);
  memset(raw, 1, bytes);
  return raw;
}

static __attribute__((noinline)) void add(float* restrict a, const float* restrict b, size_t n) {
  for (size_t i = 0; i < n; ++i) a[i] += b[i];
}

/* GB/s of one core: bytes copied, or bytes of the summand, per second. */
static double memory_rate(char* to, char* from, size_t bytes, int sum) {
  double found[BATCHES];
  const int turns = bytes >= ((size_t)16 << 20) ? 1 : (int)(((size_t)16 << 20) / bytes);
  for (int b = 0; b < BATCHES; ++b) {
    const double begin = seconds();
    for (int i = 0; i < turns; ++i) {
      if (sum) add((float*)to, (const float*)from, bytes / sizeof(float));
      else memcpy(to, from, bytes);
      __asm__ volatile("" ::: "memory");
    }
    found[b] = (double)bytes * turns / (seconds() - begin) / 1e9;
  }
  return median(found, BATCHES);
}

struct Copier {
  int turn;
  size_t bytes;
  double begin, end;
};
static pthread_barrier_t together;
enum { COPIERS = 2 };

static void* copier(void* given) {
  struct Copier* c = given;
  pthread_setaffinity_np(pthread_self(), sizeof all_cores, &all_cores);
  pin(c->turn);
  char *from = pages(c->bytes), *to = pages(c->bytes);
  const int turns = (int)(((size_t)256 << 20) / c->bytes);
  for (int warm = 0; warm < 2; ++warm) memcpy(to, from, c->bytes);
  pthread_barrier_wait(&together);
  c->begin = seconds();
  for (int i = 0; i < (turns > 20000 ? 20000 : turns); ++i) {
    memcpy(to, from, c->bytes);
    __asm__ volatile("" ::: "memory");
  }
  c->end = seconds();
  pthread_barrier_wait(&together);
  munmap(from, c->bytes);
  munmap(to, c->bytes);
  return NULL;
}

/* GB/s of two cores that copy at once, each its own buffers of this size. */
static double copy_together(size_t bytes) {
  struct Copier two[COPIERS];
  pthread_t threads[COPIERS];
  double rate = 0;
  const int all_turns = (int)(((size_t)256 << 20) / bytes), turns = all_turns > 20000 ? 20000 : all_turns;
  pthread_barrier_init(&together, NULL, COPIERS);
  for (int i = 0; i < COPIERS; ++i) {
    two[i].turn = i, two[i].bytes = bytes;
    pthread_create(&threads[i], NULL, copier, &two[i]);
  }
  for (int i = 0; i < COPIERS; ++i) {
    pthread_join(threads[i], NULL);
    rate += (double)bytes * turns / (two[i].end - two[i].begin) / 1e9;
  }
  pthread_barrier_destroy(&together);
  return rate;
}

static _Atomic int whose;
enum { HAND_OVERS = 20000 };

static void* take_turns(void* me_) {
  const int me = *(int*)me_;
  pthread_setaffinity_np(pthread_self(), sizeof all_cores, &all_cores);
  pin(0);
  for (int i = 0; i < HAND_OVERS; ++i) {
    while (atomic_load_explicit(&whose, memory_order_acquire) != me) sched_yield();
    atomic_store_explicit(&whose, 1 - me, memory_order_release);
  }
  return NULL;
}

/* What it costs to hand one core from one waiting rank to the next. */
static double yield_us(void) {
  int me[2] = {0, 1};
  pthread_t threads[2];
  const double begin = seconds();
  for (int i = 0; i < 2; ++i) pthread_create(&threads[i], NULL, take_turns, &me[i]);
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
  return (seconds() - begin) / (2 * HAND_OVERS) * 1e6;
}

static int pair[2];

static int connect_pair(void) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  const int server = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  if (server < 0 || bind(server, (struct sockaddr*)&at, sizeof at) || listen(server, 1)) return -1;
  if (getsockname(server, (struct sockaddr*)&at, &size)) return -1;
  pair[0] = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(pair[0], (struct sockaddr*)&at, sizeof at)) return -1;
  pair[1] = accept(server, NULL, NULL);
  close(server);
  for (int i = 0; i < 2; ++i) setsockopt(pair[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return pair[1] < 0 ? -1 : 0;
}

static int all(int socket_, char* data, size_t bytes, int writing, int flags) {
  for (size_t done = 0; done < bytes;) {
    char* at = data + done;
    const ssize_t got = writing ? send(socket_, at, bytes - done, 0) : recv(socket_, at, bytes - done, flags);
    if (got > 0) done += (size_t)got;
    else if (got == 0 || !(flags & MSG_DONTWAIT)) return -1;
  }
  return 0;
}

enum { SMALL_TURNS = 2000 };
static const size_t STREAM = (size_t)64 << 20;

static void* far_end(void* buffer) {
  char word[8];
  pthread_setaffinity_np(pthread_self(), sizeof all_cores, &all_cores);
  pin(1);
  for (int i = 0; i < SMALL_TURNS * BATCHES; ++i) {
    if (all(pair[1], word, 8, 0, MSG_DONTWAIT) || all(pair[1], word, 8, 1, 0)) return NULL;
  }
  for (int b = 0; b < BATCHES; ++b) {
    if (all(pair[1], buffer, STREAM, 0, 0) || all(pair[1], word, 1, 1, 0)) return NULL;
  }
  return NULL;
}

static int loopback(double* one_way_us, double* stream_gbytes_per_s, char* send_from, char* receive_to) {
  double small[BATCHES], large[BATCHES];
  char word[8] = {0};
  pthread_t other;
  if (connect_pair()) return -1;
  pthread_create(&other, NULL, far_end, receive_to);
  pin(0);
  for (int b = 0; b < BATCHES; ++b) {
    const double begin = seconds();
    for (int i = 0; i < SMALL_TURNS; ++i) {
      if (all(pair[0], word, 8, 1, 0) || all(pair[0], word, 8, 0, MSG_DONTWAIT)) return -1;
    }
    small[b] = (seconds() - begin) / SMALL_TURNS / 2 * 1e6;
  }
  for (int b = 0; b < BATCHES; ++b) {
    const double begin = seconds();
    if (all(pair[0], send_from, STREAM, 1, 0) || all(pair[0], word, 1, 0, 0)) return -1;
    large[b] = (double)STREAM / (seconds() - begin) / 1e9;
  }
  pthread_join(other, NULL);
  *one_way_us = median(small, BATCHES);
  *stream_gbytes_per_s = median(large, BATCHES);
  return 0;
}

int main(int argc, char** argv) {
  pthread_getaffinity_np(pthread_self(), sizeof all_cores, &all_cores);
  const double ns = cache_line_ns();
  if (CPU_COUNT(&all_cores) < 2 || ns < 0) {
    printf("{\"cache_line_ns\": null, \"error\": \"no two cores at once\"}\n");
    return 0;
  }
  if (argc > 1 && strcmp(argv[1], "--quick") == 0) {
    printf("{\"cache_line_ns\": %.1f}\n", ns);
    return 0;
  }
  char *from = pages(STREAM), *to = pages(STREAM);
  const size_t mib = (size_t)1 << 20;
  const double copy = memory_rate(to, from, STREAM, 0), copy_near = memory_rate(to, from, mib, 0);
  const double sum = memory_rate(to, from, STREAM, 1), sum_near = memory_rate(to, from, mib, 1);
  double small = 0, large = 0;
  if (loopback(&small, &large, from, to)) {
    fprintf(stderr, "floor: no loopback socket\n");
    return 3;
  }
  printf("{\"cache_line_ns\": %.1f, \"yield_us\": %.3f, \"memcpy_64mib_gbytes_per_s\": %.2f, "
         "\"memcpy_1mib_gbytes_per_s\": %.2f, \"sum_64mib_gbytes_per_s\": %.2f, \"sum_1mib_gbytes_per_s\": %.2f, "
         "\"loopback_8b_us\": %.2f, \"loopback_stream_gbytes_per_s\": %.2f, \"copy_together_gbytes_per_s\": {",
         ns, yield_us(), copy, copy_near, sum, sum_near, small, large);
  for (size_t bytes = (size_t)16 << 10; bytes <= STREAM; bytes *= 4) {
    printf("%s\"%zu\": %.2f", bytes == (size_t)16 << 10 ? "" : ", ", bytes, copy_together(bytes));
  }
  printf("}}\n");
  return 0;
}
