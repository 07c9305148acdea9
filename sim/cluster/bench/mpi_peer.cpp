// The peer of `deepinfer-sim bench collectives`: the same collectives by MPI, a process a rank.
// Prints "BARRIER_US ALL_REDUCE_US".
//   mpirun -np RANKS mpi_peer ELEMENTS BARRIERS ALL_REDUCES
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <mpi.h>

namespace {

template <typename Call>
double microseconds(long rounds, const Call& call) {
  for (long i = 0; i < rounds / 10 + 1; ++i) call();  // warms up
  const double begin = MPI_Wtime();
  for (long i = 0; i < rounds; ++i) call();
  return (MPI_Wtime() - begin) * 1e6 / static_cast<double>(rounds);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 4) {
    std::fprintf(stderr, "usage: mpi_peer ELEMENTS BARRIERS ALL_REDUCES\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const long elements = std::atol(argv[1]), barriers = std::atol(argv[2]),
             all_reduces = std::atol(argv[3]);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const double barrier = microseconds(barriers, [] { MPI_Barrier(MPI_COMM_WORLD); });
  std::vector<float> data(static_cast<size_t>(elements));
  const double all_reduce = microseconds(all_reduces, [&] {
    MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(elements), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  });
  if (rank == 0) std::printf("%.3f %.3f\n", barrier, all_reduce);
  MPI_Finalize();
  return 0;
}
