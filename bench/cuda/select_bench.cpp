#include "bench/cuda/bench.h"
#include "kernels/cuda/select/select.h"

#include <cstring>

namespace pgwarp::gpu {

namespace {

struct SelectRun {
    uint32_t rows, length, k;
    std::string bar;
};

class SelectBench {
  public:
    SelectBench(const Context& context, const Settings& settings, const Limits& limits)
        : context_(context), settings_(settings), limits_(limits) {}

    void run(const SelectRun& run, const SelectPlan& plan, const char* note) {
        const size_t floats = size_t{run.rows} * run.length;
        // Several copies of a matrix that fits into the cache are used in turn, so that none is
        // cached.
        const size_t copies = std::clamp<size_t>((size_t{512} << 20) / (floats * 4), 1, 16);
        values_.grow(context_.memory, floats * copies);
        if (filled_ < floats * copies) {
            filled_ = values_.size();
            fill_uniform(values_.data(), filled_, 4, stream_);
        }
        out_values_.grow(context_.memory, size_t{run.rows} * run.k);
        out_indices_.grow(context_.memory, size_t{run.rows} * run.k);
        scratch_.grow(context_.memory, select_scratch_bytes(plan, run.rows, run.k));
        SelectProblem problem;
        problem.stride = problem.length = run.length;
        problem.rows = run.rows;
        problem.k = run.k;
        problem.out_values = out_values_.data();
        problem.out_indices = out_indices_.data();
        size_t turn = 0;
        const auto call = [&] {
            problem.values = values_ + floats * (turn++ % copies);
            select(problem, plan, scratch_.data(), stream_);
        };
        const double time = time_on_device(stream_, call, 11, 3);
        if (std::strchr(note, '*')) profile(settings_, call);
        const double rate = static_cast<double>(floats) * sizeof(float) / time;
        char what[96];
        std::snprintf(what, sizeof what, "k-selection, %u x %u, k = %u, %s", run.rows, run.length,
                      run.k, note);
        report(what, time, format("%.0f GB/s", rate * 1e-9),
               format("%.1f%% of copy", 100 * rate / limits_.copy_bandwidth), run.bar);
    }

    // Runs all methods; the one that select() picks is marked.
    void all(const SelectRun& run_case) {
        const SelectPlan plan =
            plan_select(run_case.rows, run_case.length, run_case.k, context_.processors);
        const SelectRun other{run_case.rows, run_case.length, run_case.k, ""};
        const char* names[] = {"warp", "block", "short"};
        run(run_case, plan, (std::string(names[static_cast<int>(plan.method)]) + " *").c_str());
        if (plan.method != SelectMethod::block) run(other, {SelectMethod::block, 1}, "block");
        if (plan.method != SelectMethod::warp)
            run(other, {SelectMethod::warp, run_case.rows == 1 ? plan.splits * 4 : 1}, "warp");
    }

  private:
    const Context& context_;
    const Settings& settings_;
    const Limits& limits_;
    Stream stream_;
    Buffer<float> values_, out_values_;
    Buffer<uint32_t> out_indices_;
    Buffer<char> scratch_;
    size_t filled_ = 0;
};

}  // namespace

void bench_select(const Context& context, const Settings& settings, const Limits& limits) {
    SelectBench bench(context, settings, limits);
    bench.all({10000, 128000, 32, ">= 80%"});
    bench.all({10000, 128000, 100, ">= 70%"});
    bench.all({10000, 128000, 1000, ">= 40%"});
    bench.all({10000, 128000, 2048, ""});
    bench.all({10000, 1000, 10, ""});
    bench.all({10000, 1000, 32, ""});
    bench.all({10000, 1000, 100, ">= 591 GB/s"});
    bench.all({10000, 1000, 1000, ">= 165 GB/s"});
    bench.all({10000, 100, 10, ""});
    bench.all({10000, 10000, 10, ""});
    bench.all({10000, 10000, 100, ""});
    bench.all({100, 1000000, 100, ""});
    bench.all({1, 5000000, 10, "<= 60 us"});
    for (uint32_t splits : {66u, 132u, 264u, 528u, 1056u})
        bench.run({1, 5000000, 10, ""}, {SelectMethod::block, splits},
                  (std::to_string(splits) + " parts").c_str());
}

}  // namespace pgwarp::gpu
