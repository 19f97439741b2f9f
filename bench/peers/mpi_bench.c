/* Every MPI library as a peer of ccl_lab_bench: built with the library's own mpicc, started by its own mpirun.
 *
 * Is: the seven operations as calls of MPI. Is not: the protocol, which is bench_core.h.
 * Invariants: float32, sum; in place means MPI_IN_PLACE; BENCH_THREAD_MULTIPLE=1 asks for MPI_THREAD_MULTIPLE.
 */
#include "bench_core.h"

#include <mpi.h>

static struct Library lib;

static void ping_pong(float* data, int count) {
  const int peer = lib.rank ^ 1;
  if (peer >= lib.size) return;
  if (lib.rank < peer) {
    MPI_Send(data, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
    MPI_Recv(data, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else {
    MPI_Recv(data, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(data, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
  }
}

static int call(enum Op op, int in_place, float* input, float* output, size_t elements) {
  const int count = (int)elements;
  const void* source = in_place ? MPI_IN_PLACE : (const void*)input;
  switch (op) {
    case ALL_REDUCE: MPI_Allreduce(source, output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALL_GATHER:
      MPI_Allgather(source, count, MPI_FLOAT, output, count, MPI_FLOAT, MPI_COMM_WORLD);
      break;
    case REDUCE_SCATTER:
      /* MPI's in-place result lies at the start of the buffer, not at block r. */
      if (in_place) return 0;
      MPI_Reduce_scatter_block(input, output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case ALL_TO_ALL:
      MPI_Alltoall(source, count, MPI_FLOAT, output, count, MPI_FLOAT, MPI_COMM_WORLD);
      break;
    case BROADCAST: MPI_Bcast(output, count, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    case PING_PONG: ping_pong(output, count); break;
    case BARRIER: MPI_Barrier(MPI_COMM_WORLD); break;
    default: return 0;
  }
  return 1;
}

static double max_over_ranks(double value) {
  double found = 0;
  MPI_Allreduce(&value, &found, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return found;
}

static void wait_for_all(void) { MPI_Barrier(MPI_COMM_WORLD); }

int main(int argc, char** argv) {
  const struct Arguments arguments = parse(argc, argv);
  const char* multiple = getenv("BENCH_THREAD_MULTIPLE");
  int provided = 0;
  if (multiple && *multiple == '1') {
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  } else {
    MPI_Init(&argc, &argv);
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &lib.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &lib.size);
  lib.call = call, lib.max_over_ranks = max_over_ranks, lib.wait_for_all = wait_for_all;
  run_all(&lib, &arguments);
  MPI_Finalize();
  return 0;
}
