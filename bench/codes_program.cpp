// Compares quantizers with codes of equal size on a set of vectors: prints the figures of
// kernels/compare_codes.h.
//
//     cmake --build build/kernels --target pgwarp_bench_codes
//     pgwarp_bench_codes BASE QUERIES TRUTH BYTES TRAINING_ROWS [pq pq4 opq opq4 lsq lsq+norm ...]
//
// lsq has as many codebooks as bytes, and stores norms outside the code; lsq+norm has one codebook
// less, and the norm as a byte of the code. lsq32 and lsq32+norm search codes in 32 rounds, not 16.

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/vecs_file.h"
#include "kernels/compare_codes.h"

int main(int argc, char** argv) {
    using namespace pgwarp;
    if (argc < 7) {
        std::fprintf(stderr, "usage: %s BASE QUERIES TRUTH BYTES TRAINING_ROWS QUANTIZER ...\n",
                     argv[0]);
        return 2;
    }
    const bench::Vectors base = bench::read_vectors(argv[1]);
    const bench::Vectors queries = bench::read_vectors(argv[2]);
    const bench::RowNumbers truth = bench::read_row_numbers(argv[3]);
    const auto bytes = static_cast<uint32_t>(std::atoi(argv[4]));
    const size_t training = std::min<size_t>(std::strtoul(argv[5], nullptr, 10), base.rows);
    std::vector<uint32_t> nearest;
    for (size_t i = 0; i < queries.rows; ++i)
        nearest.push_back(static_cast<uint32_t>(truth.row(i)[0]));
    const CodeSample sample{static_cast<uint32_t>(base.dims),
                            Metric::l2,
                            base.values.data(),
                            training,
                            base.values.data(),
                            base.rows,
                            queries.values.data(),
                            queries.rows,
                            nearest.data()};
    Workers workers(1);
    const auto executor = make_cpu_executor(1, {});
    std::printf("%zu x %zu, %zu queries, %u bytes, trained with %zu rows, one thread\n", base.rows,
                base.dims, queries.rows, bytes, training);
    std::printf("%-8s %10s %12s %8s %8s %8s %8s\n", "", "training s", "rows/s", "error", "R@1",
                "R@10", "R@100");
    for (int i = 6; i < argc; ++i) {
        const std::string name = argv[i];
        CodeTrial trial{name.starts_with("opq") ? CodeKind::opq : CodeKind::pq,
                        name.ends_with("4") ? 4u : 8u, bytes};
        if (name.starts_with("lsq")) {
            const bool norm = name.ends_with("+norm");
            trial = {norm ? CodeKind::lsq_with_norm : CodeKind::lsq, 8, bytes};
            if (std::isdigit(name[3]))
                trial.rounds = static_cast<uint32_t>(std::stoul(name.substr(3)));
        } else if (name != "pq" && name != "opq" && name != "pq4" && name != "opq4") {
            std::fprintf(stderr, "there is no quantizer %s\n", argv[i]);
            return 2;
        }
        const CodeQuality q = measure_codes(workers, *executor, trial, sample, 1);
        std::printf("%-8s %10.1f %12.0f %8.4f %8.4f %8.4f %8.4f\n", name.c_str(),
                    q.training_seconds, q.rows_per_second, q.error, q.recall[0], q.recall[1],
                    q.recall[2]);
        std::fflush(stdout);
    }
}
