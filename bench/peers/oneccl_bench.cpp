// oneCCL as a peer of ccl_lab_bench: its C++ interface on host memory, ranks started by Intel MPI.
//
// Is: the operations oneCCL offers on the CPU. Is not: the protocol, which is bench_core.h.
// Invariants: MPI only starts ranks, hands out the key-value store's address and compares clocks between batches.
#include "bench_core.h"

#include <exception>
#include <memory>
#include <mpi.h>
#include <oneapi/ccl.hpp>

namespace {

Library lib;
std::unique_ptr<ccl::communicator> comm;

int call(Op op, int in_place, float* input, float* output, size_t count) {
  const auto type = ccl::datatype::float32;
  const auto n = static_cast<size_t>(lib.size);
  const float* source = in_place ? output : input;
  switch (op) {
    case ALL_REDUCE: ccl::allreduce(source, output, count, type, ccl::reduction::sum, *comm).wait(); return 1;
    case ALL_GATHER: {
      const ccl::vector_class<size_t> counts(n, count);
      ccl::allgatherv(input, count, output, counts, type, *comm).wait();
      return 1;
    }
    case REDUCE_SCATTER:
      if (in_place) return 0;
      ccl::reduce_scatter(input, output, count, type, ccl::reduction::sum, *comm).wait();
      return 1;
    case ALL_TO_ALL:
      if (in_place) return 0;
      ccl::alltoall(input, output, count, type, *comm).wait();
      return 1;
    case BROADCAST: ccl::broadcast(output, count, type, 0, *comm).wait(); return 1;
    case BARRIER: ccl::barrier(*comm); return 1;
    default: return 0;
  }
}

double max_over_ranks(double value) {
  double found = 0;
  MPI_Allreduce(&value, &found, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return found;
}

void wait_for_all() { MPI_Barrier(MPI_COMM_WORLD); }

void make_communicator() {
  ccl::init();
  ccl::kvs::address_type address;
  ccl::shared_ptr_class<ccl::kvs> store;
  if (lib.rank == 0) {
    store = ccl::create_main_kvs();
    address = store->get_address();
  }
  MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
  if (lib.rank != 0) store = ccl::create_kvs(address);
  comm = std::make_unique<ccl::communicator>(ccl::create_communicator(lib.size, lib.rank, store));
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &lib.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &lib.size);
  lib.call = call, lib.max_over_ranks = max_over_ranks, lib.wait_for_all = wait_for_all;
  try {
    make_communicator();
    run_all(&lib, &arguments);
    comm.reset();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "oneccl_bench: rank %d: %s\n", lib.rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
