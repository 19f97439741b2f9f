/* How far two cores are from each other now: a cache line to the other core and back.
 *
 * Is: two threads that pin themselves to different cores, whatever the process was pinned to; plain C that compiles as C++.
 * Is not: part of any measured time. Invariants: it ends within about 2 ms on a quiet machine and half a second on a busy
 * one; the caller's affinity is as before afterwards; -1 where no two cores could be had at once.
 */
#ifndef CCL_LAB_BENCH_CACHE_LINE_H
#define CCL_LAB_BENCH_CACHE_LINE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CACHE_LINE_BATCHES = 9, CACHE_LINE_TURNS = 200 };

struct CacheLineGame {
  uint32_t ping;
  char between_them[252];
  uint32_t pong;
  char after[252];
  int cpus[2];
};

static double cache_line_clock(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int cache_line_pin(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET((unsigned)cpu, &one);
  return pthread_setaffinity_np(pthread_self(), sizeof one, &one) == 0;
}

/* The other side must not spin for ever if the first never comes: a core may be taken away for long. */
static int cache_line_wait(const uint32_t* word, uint32_t value, double deadline) {
  for (uint32_t turn = 1;; ++turn) {
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value) return 1;
    if (turn % 1024 == 0 && cache_line_clock() > deadline) return 0;
    __builtin_ia32_pause();
  }
}

static void* cache_line_answer(void* given) {
  struct CacheLineGame* game = (struct CacheLineGame*)given;
  const double deadline = cache_line_clock() + 0.25;
  if (!cache_line_pin(game->cpus[1])) return NULL;
  for (uint32_t i = 1; i <= CACHE_LINE_BATCHES * CACHE_LINE_TURNS; ++i) {
    if (!cache_line_wait(&game->ping, i, deadline)) return NULL;
    __atomic_store_n(&game->pong, i, __ATOMIC_RELEASE);
  }
  return NULL;
}

static int cache_line_compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double cache_line_play(struct CacheLineGame* game) {
  double found[CACHE_LINE_BATCHES];
  const double deadline = cache_line_clock() + 0.25;
  uint32_t at = 1;
  for (int b = 0; b < CACHE_LINE_BATCHES; ++b) {
    const double begin = cache_line_clock();
    for (int i = 0; i < CACHE_LINE_TURNS; ++i, ++at) {
      __atomic_store_n(&game->ping, at, __ATOMIC_RELEASE);
      if (!cache_line_wait(&game->pong, at, deadline)) return -1;
    }
    found[b] = (cache_line_clock() - begin) / CACHE_LINE_TURNS / 2 * 1e9;
  }
  qsort(found, CACHE_LINE_BATCHES, sizeof found[0], cache_line_compare);
  return found[CACHE_LINE_BATCHES / 2];
}

/* Nanoseconds one way, the median of some batches; -1 where it could not be measured. */
static double cache_line_ns(void) {
  cpu_set_t before;
  struct CacheLineGame* game = NULL;
  pthread_t other;
  double found = -1;
  if (posix_memalign((void**)&game, 256, sizeof *game)) return -1;
  memset(game, 0, sizeof *game);
  pthread_getaffinity_np(pthread_self(), sizeof before, &before);
  int cpus = 0;
  for (int cpu = 0; cpu < (int)sysconf(_SC_NPROCESSORS_CONF) && cpu < CPU_SETSIZE && cpus < 2; ++cpu) {
    if (cache_line_pin(cpu)) game->cpus[cpus++] = cpu;
  }
  if (cpus == 2 && cache_line_pin(game->cpus[0]) && pthread_create(&other, NULL, cache_line_answer, game) == 0) {
    found = cache_line_play(game);
    pthread_join(other, NULL);
  }
  pthread_setaffinity_np(pthread_self(), sizeof before, &before);
  free(game);
  return found;
}

#endif
