/* The timing protocol that every native peer program shares: arguments, buffers, calibration, batches, verification, output.
 *
 * Is: plain C that compiles as C++, included by one program per library, which supplies `struct Library`.
 * Is not: a benchmark of its own; what ccl_lab_bench does must be the same protocol, or the figures cannot be compared.
 *
 *   per cell:   fill -> one call -> verify (exact small integers) -> zero the buffers -> calibrate -> batches
 *   one batch:  barrier, `iters` calls back to back, time / iters, max over the ranks
 *   a label:    before and after the batches rank 0 measures a cache line between the cores while the others sleep
 *
 * Invariants: `bytes` is what nccl-tests call the size (the larger buffer of a rank); every rank takes the same number of
 * calls; one line of JSON a cell, printed by rank 0; a wrong result is printed as ok: false and never timed.
 */
#ifndef CCL_LAB_BENCH_CORE_H
#define CCL_LAB_BENCH_CORE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cache_line.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum Op { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, PING_PONG, BARRIER, N_OPS };
static const char* const OP_NAMES[N_OPS] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                            "broadcast",  "ping_pong",  "barrier"};

struct Library {
  int rank, size;
  /* One call. `count` is elements of a block (all_reduce, broadcast, ping_pong: of the message). 0: not offered. */
  int (*call)(enum Op op, int in_place, float* input, float* output, size_t count);
  double (*max_over_ranks)(double value);
  void (*wait_for_all)(void);
  /* Where the library has buffers of its own (registered memory); null: plain memory, as `buffer` makes it. */
  float* (*allocate)(size_t bytes);
  void (*release)(float* memory);
};

struct Wanted {
  enum Op op;
  size_t bytes;
};

enum { MAX_CELLS = 1024 };

struct Arguments {
  int ops[N_OPS];
  size_t bytes[64];
  struct Wanted cells[MAX_CELLS];
  int n_bytes, n_cells, batches, min_iters, in_place, startup, memory, huge;
  double batch_ms, cell_seconds;
};

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static enum Op op_named(const char* word) {
  for (int op = 0; op < N_OPS; ++op) {
    if (strcmp(word, OP_NAMES[op]) == 0) return (enum Op)op;
  }
  fprintf(stderr, "bench: unknown op \"%s\"; known: all_reduce ... barrier\n", word);
  exit(2);
}

static void parse_ops(struct Arguments* a, char* list) {
  for (char* word = strtok(list, ","); word; word = strtok(NULL, ",")) a->ops[op_named(word)] = 1;
}

/* "all_reduce:8,barrier:0": exactly these, in this order. */
static void parse_cells(struct Arguments* a, char* list) {
  for (char* word = strtok(list, ","); word; word = strtok(NULL, ",")) {
    char* colon = strchr(word, ':');
    if (!colon || a->n_cells == MAX_CELLS) {
      fprintf(stderr, "bench: --cells takes up to %d of op:bytes, found \"%s\"\n", MAX_CELLS, word);
      exit(2);
    }
    *colon = 0;
    a->cells[a->n_cells].op = op_named(word);
    a->cells[a->n_cells++].bytes = (size_t)strtoull(colon + 1, NULL, 10);
  }
}

static void parse_bytes(struct Arguments* a, char* list) {
  for (char* word = strtok(list, ","); word && a->n_bytes < 64; word = strtok(NULL, ",")) {
    a->bytes[a->n_bytes++] = (size_t)strtoull(word, NULL, 10);
  }
}

static double private_bytes(void);
static double bare_process_bytes;

/* To be called before the library starts: what this process holds then is no memory of the library. */
static struct Arguments parse(int argc, char** argv) {
  struct Arguments a;
  memset(&a, 0, sizeof a);
  bare_process_bytes = private_bytes();
  a.batches = 5, a.min_iters = 3, a.batch_ms = 10, a.huge = 1, a.cell_seconds = 10;
  for (int i = 1; i < argc; ++i) {
    const char* name = argv[i];
    if (strcmp(name, "--startup") == 0) { a.startup = 1; continue; }
    if (strcmp(name, "--memory") == 0) { a.memory = 1; continue; }
    if (i + 1 == argc) { fprintf(stderr, "bench: %s needs a value\n", name); exit(2); }
    char* value = argv[++i];
    if (strcmp(name, "--ops") == 0) parse_ops(&a, value);
    else if (strcmp(name, "--bytes") == 0) parse_bytes(&a, value);
    else if (strcmp(name, "--cells") == 0) parse_cells(&a, value);
    else if (strcmp(name, "--cell-seconds") == 0) a.cell_seconds = atof(value);
    else if (strcmp(name, "--batches") == 0) a.batches = atoi(value);
    else if (strcmp(name, "--batch-ms") == 0) a.batch_ms = atof(value);
    else if (strcmp(name, "--min-iters") == 0) a.min_iters = atoi(value);
    else if (strcmp(name, "--in-place") == 0) a.in_place = atoi(value);
    else if (strcmp(name, "--huge") == 0) a.huge = atoi(value);
    else { fprintf(stderr, "bench: unknown argument %s\n", name); exit(2); }
  }
  if (a.batches < 1 || a.batches > 1000 || a.min_iters < 1) {
    fprintf(stderr, "bench: --batches 1..1000 and --min-iters >= 1 expected\n");
    exit(2);
  }
  return a;
}

/* The C library's memory, as programs have it, and huge pages alike for all: every peer's user buffers are aligned and advised
 * the same way. */
static float* buffer(size_t bytes, int huge) {
  const size_t page = (size_t)2 << 20, size = (bytes + 2 * page - 1) / page * page;
  char* memory = (char*)aligned_alloc(page, size);
  if (!memory) {
    fprintf(stderr, "bench: no memory for a buffer of %zu bytes\n", bytes);
    exit(3);
  }
  if (huge) madvise(memory, size, MADV_HUGEPAGE);
  memset(memory, 0, bytes ? bytes : 1);
  return (float*)memory;
}

/* Exact in float32 for any order of summation: values 0..6 plus a rank of at most 255. */
static float value_of(int rank, size_t index) { return (float)(rank + (int)(index % 7)); }

/* Elements of one block: what `call` takes. */
static size_t block_count(enum Op op, size_t bytes, int n) {
  const size_t elements = bytes / sizeof(float);
  const int split = op == ALL_GATHER || op == REDUCE_SCATTER || op == ALL_TO_ALL;
  const size_t count = split ? elements / (size_t)n : elements;
  return op == BARRIER ? 0 : (count ? count : 1);
}

static size_t input_blocks(enum Op op, int n) { return op == REDUCE_SCATTER || op == ALL_TO_ALL ? (size_t)n : 1; }
static size_t output_blocks(enum Op op, int n) { return op == ALL_GATHER || op == ALL_TO_ALL ? (size_t)n : 1; }

static const char* kind_of_buffers(const struct Library* lib) { return lib->allocate ? "registered" : "plain"; }

static float* take_buffer(const struct Library* lib, size_t bytes, int huge) {
  float* found = lib->allocate ? lib->allocate(bytes) : buffer(bytes, huge);
  if (lib->allocate) memset(found, 0, bytes);
  return found;
}

static void give_buffer(const struct Library* lib, float* memory) {
  if (lib->release && memory) lib->release(memory);
  else free(memory);
}

static void fill(enum Op op, float* input, size_t count, const struct Library* lib) {
  const size_t n = input_blocks(op, lib->size) * count;
  int source = lib->rank;
  if (op == BROADCAST) source = lib->rank == 0 ? 0 : 99;
  if (op == PING_PONG) source = lib->rank % 2 == 0 ? 0 : 99;
  for (size_t i = 0; i < n; ++i) input[i] = value_of(source, i);
}

/* First wrong element of the output, or -1. */
static long verify(enum Op op, const float* out, size_t count, const struct Library* lib) {
  const int n = lib->size, r = lib->rank;
  const float ranks = (float)(n * (n - 1) / 2);
  for (size_t block = 0; block < output_blocks(op, n); ++block) {
    for (size_t i = 0; i < count; ++i) {
      float want = 0;
      if (op == ALL_REDUCE) want = ranks + (float)(n * (int)(i % 7));
      if (op == ALL_GATHER) want = value_of((int)block, i);
      if (op == REDUCE_SCATTER) want = ranks + (float)(n * (int)(((size_t)r * count + i) % 7));
      if (op == ALL_TO_ALL) want = value_of((int)block, (size_t)r * count + i);
      if (op == BROADCAST || op == PING_PONG) want = value_of(0, i);
      if (out[block * count + i] != want) return (long)(block * count + i);
    }
  }
  return -1;
}

struct Cell {
  enum Op op;
  int in_place;
  float *input, *output;
  size_t count, bytes;
};

/* Time of one call in a batch of `iters`, in seconds: the slowest rank's. */
static double batch(const struct Library* lib, const struct Cell* c, long iters) {
  lib->wait_for_all();
  const double begin = seconds();
  for (long i = 0; i < iters; ++i) lib->call(c->op, c->in_place, c->input, c->output, c->count);
  return lib->max_over_ranks((seconds() - begin) / (double)iters);
}

static long calibrate(const struct Library* lib, const struct Cell* c, const struct Arguments* a) {
  long iters = 1;
  for (int turn = 0; turn < 24; ++turn) {
    const double want = a->batch_ms * 1e-3;
    double total = batch(lib, c, iters) * (double)iters;
    /* A rank that lost its core once must not make all batches of the cell too short: ask twice before believing. */
    if (total >= want * 0.6 && total < 20 * want) {
      const double again = batch(lib, c, iters) * (double)iters;
      if (again < total) total = again;
    }
    if (total >= want * 0.6 || iters >= 4000000) break;
    const double factor = total > 0 ? want / total : 8;
    iters = (long)((double)iters * (factor > 8 ? 8 : factor < 1.2 ? 1.2 : factor)) + 1;
  }
  return iters < a->min_iters ? a->min_iters : iters;
}

/* A library that collapses (ranks that spin where others need the core) is shown as slow, not waited for all day. */
static int long_enough(const struct Library* lib, const struct Arguments* a, double begin, int done) {
  return done >= 3 && lib->max_over_ranks(seconds() - begin) > a->cell_seconds;
}

/* Ranks that wait would spin on the cores that are to be measured, so they sleep. */
static double distance_ns(const struct Library* lib) {
  const struct timespec a_while = {0, 3000000};
  lib->wait_for_all();
  if (lib->rank == 0) return cache_line_ns();
  nanosleep(&a_while, NULL);
  return 0;
}

static void measure(const struct Library* lib, const struct Cell* c, const struct Arguments* a) {
  const double before_ns = distance_ns(lib);
  const double begin = seconds();
  const long iters = calibrate(lib, c, a);
  if (lib->rank == 0) {
    printf("{\"op\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"buffers\": \"%s\", \"in_place\": %d, \"iters\": %ld, "
           "\"batch_us\": [", OP_NAMES[c->op], lib->size, c->bytes, kind_of_buffers(lib), c->in_place, iters);
  }
  for (int i = 0; i < a->batches; ++i) {
    const double one = batch(lib, c, iters) * 1e6 / (c->op == PING_PONG ? 2 : 1);
    if (lib->rank == 0) printf("%s%.6g", i ? ", " : "", one);
    if (long_enough(lib, a, begin, i + 1)) break;
  }
  const double after_ns = distance_ns(lib);
  if (lib->rank == 0) printf("], \"cache_line_ns\": [%.1f, %.1f], \"ok\": true}\n", before_ns, after_ns);
  if (lib->rank == 0) fflush(stdout);
}

/* In place: the input is (part of) the output or the other way round; the layouts of nccl-tests. */
static void lay_out(struct Cell* c, const struct Library* lib, float* first, float* second) {
  c->input = first, c->output = second;
  if (!c->in_place && c->op != BROADCAST && c->op != PING_PONG) return;
  c->output = first;
  if (c->op == ALL_GATHER) c->input = first + (size_t)lib->rank * c->count;
  if (c->op == REDUCE_SCATTER) c->output = first + (size_t)lib->rank * c->count;
}

static void run_cell(const struct Library* lib, const struct Arguments* a, enum Op op, size_t bytes) {
  struct Cell c;
  const int n = lib->size;
  memset(&c, 0, sizeof c);
  c.op = op, c.in_place = a->in_place || op == BROADCAST || op == PING_PONG, c.count = block_count(op, bytes, n);
  const size_t blocks = input_blocks(op, n) > output_blocks(op, n) ? input_blocks(op, n) : output_blocks(op, n);
  c.bytes = c.count * sizeof(float) * blocks;
  float* first = take_buffer(lib, c.bytes, a->huge);
  float* second = c.in_place ? NULL : take_buffer(lib, c.bytes, a->huge);
  lay_out(&c, lib, first, second);
  fill(op, c.input, c.count, lib);
  lib->wait_for_all();
  const int offered = lib->call(op, c.in_place, c.input, c.output, c.count);
  const long wrong = offered && op != BARRIER ? verify(op, c.output, c.count, lib) : -1;
  const double worst = lib->max_over_ranks(wrong >= 0 ? (double)(wrong + 1) : 0);
  memset(first, 0, c.bytes);
  if (second) memset(second, 0, c.bytes);
  if (!offered || worst > 0) {
    if (lib->rank == 0) {
      printf("{\"op\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"buffers\": \"%s\", \"in_place\": %d, \"iters\": 0, "
             "\"batch_us\": [], \"ok\": false, \"error\": \"%s %.0f\"}\n", OP_NAMES[op], n, c.bytes,
             kind_of_buffers(lib), c.in_place, offered ? "wrong result, element" : "not offered", offered ? worst - 1 : 0.0);
      fflush(stdout);
    }
  } else {
    measure(lib, &c, a);
  }
  give_buffer(lib, first);
  give_buffer(lib, second);
}

/* Anonymous and shared memory of this process; what several ranks map counts once, in parts. Program and libraries, which
 * the page cache holds once for all, do not count. */
static double private_bytes(void) {
  char line[256];
  double found = 0;
  FILE* file = fopen("/proc/self/smaps_rollup", "r");
  while (file && fgets(line, sizeof line, file)) {
    if (strncmp(line, "Pss_Anon:", 9) == 0) found += 1024.0 * (double)atol(line + 9);
    if (strncmp(line, "Pss_Shmem:", 10) == 0) found += 1024.0 * (double)atol(line + 10);
  }
  if (file) fclose(file);
  return found;
}

/* Bytes a rank holds beyond the bare process and its two buffers after an all_reduce of the size. */
static void run_memory(const struct Library* lib, const struct Arguments* a) {
  for (int i = 0; i < a->n_bytes; ++i) {
    const size_t count = block_count(ALL_REDUCE, a->bytes[i], lib->size), bytes = count * sizeof(float);
    float *input = take_buffer(lib, bytes, a->huge), *output = take_buffer(lib, bytes, a->huge);
    for (int turn = 0; turn < 3; ++turn) lib->call(ALL_REDUCE, 0, input, output, count);
    lib->wait_for_all();
    /* The mean: which rank touched a shared page first is chance, and shares of one page belong to several. */
    float mine = (float)((private_bytes() - bare_process_bytes) / 1024), sum = 0;
    lib->call(ALL_REDUCE, 0, &mine, &sum, 1);
    const double each = 1024.0 * sum / lib->size - 2.0 * (double)bytes;
    if (lib->rank == 0) {
      printf("{\"memory_bytes\": %.0f, \"bytes\": %zu, \"ranks\": %d}\n", each, bytes, lib->size);
      fflush(stdout);
    }
    lib->wait_for_all();
    give_buffer(lib, input);
    give_buffer(lib, output);
  }
}

static void run_startup(const struct Library* lib) {
  float one = 1, sum = 0;
  lib->call(ALL_REDUCE, 0, &one, &sum, 1);
  if (lib->rank == 0) {
    printf("{\"startup_done_s\": %.9f, \"ranks\": %d, \"ok\": %s}\n", seconds(), lib->size,
           sum == (float)lib->size ? "true" : "false");
    fflush(stdout);
  }
}

static void run_all(const struct Library* lib, const struct Arguments* a) {
  if (a->startup) { run_startup(lib); return; }
  if (a->memory) { run_memory(lib, a); return; }
  for (int i = 0; i < a->n_cells; ++i) run_cell(lib, a, a->cells[i].op, a->cells[i].bytes);
  for (int op = 0; op < N_OPS; ++op) {
    if (!a->ops[op]) continue;
    if (op == BARRIER) { run_cell(lib, a, BARRIER, 0); continue; }
    for (int i = 0; i < a->n_bytes; ++i) run_cell(lib, a, (enum Op)op, a->bytes[i]);
  }
}

#endif
