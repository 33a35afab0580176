// Results of earlier runs, read back from what --json wrote, to be drawn beside those of this run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bench/report.h"
#include "bench/results.h"

namespace pgwarp::bench {

class EarlierResults {
  public:
    // Throws on a file that is not such JSON, or that has no search in it.
    void read(const std::string& path);

    // Throws if a file has figures of other data, which do not belong into the same chart. A file
    // that has only searches does not name its data, and is accepted.
    void check_same_data(const RunInfo& info) const;

    // The run that the files describe, for a chart of earlier results only. Throws if none does.
    RunInfo common_run() const;

    // The results of this run, then the earlier ones, which have only what charts show: recall and
    // queries/s. A system name that is already taken gets its file's name added.
    std::vector<SystemResult> beside(std::vector<SystemResult> results) const;

  private:
    struct File {
        std::string path;
        std::vector<RunInfo> runs;
        std::vector<SystemResult> systems;
    };
    std::vector<File> files_;
};

}  // namespace pgwarp::bench
