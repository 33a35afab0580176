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

    // Figures on other data do not belong into one picture: throws if a file has some. A file that
    // was cut down to its searches is taken on trust.
    void check_same_data(const RunInfo& info) const;

    // What all files were measured on, for a picture of these alone. Throws if no file says it.
    RunInfo common_run() const;

    // The results of this run, then the earlier ones. Only what is drawn is in those: recall and
    // queries/s. A name that is taken gets its file's name added.
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
