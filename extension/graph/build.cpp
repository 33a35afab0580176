#include <algorithm>

#include "extension/graph/build.h"
#include "extension/graph/parts.h"
#include "extension/graph/progress.h"

namespace pgwarp {

void build_graph(const GraphJob& job, GraphSet* whole, bool exact, const EdgeSink& sink) {
    if (!whole->file && whole->count > rows_on_device(job, std::max(whole->dims, 1u))) {
        if (!exact && build_parts_in_memory(job, *whole, sink)) return;
        spill_graph_set(whole);
    }
    const GraphSet& set = *whole;
    if (set.file) return build_by_parts(job, set, exact, sink);
    const uint32 degree = exact ? job.k : job.options.degree;
    Edge* lists = alloc_lists(set.count, degree);
    const GraphRows rows{set.rows, set.count, set.dims, job.metric};
    report_graph_parts(0, 1);
    run_graph_kernel([&] {
        if (exact)
            job.maker.builder->exact(rows, degree, lists);
        else
            job.maker.builder->descend(rows, job.options, lists);
    });
    report_graph_parts(1, 1);
    put_lists(job, lists, set.count, degree, sink);
    pfree(lists);
}

}  // namespace pgwarp
