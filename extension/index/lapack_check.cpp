#include "kernels/lapack.h"
#include "extension/guard.h"
#include "extension/index/lapack_check.h"

namespace pgwarp {

bool check_lapack(const char* quantizer, int report_level) {
    char reason[256];
    const bool there = caught(reason, sizeof(reason), require_lapack) == Thrown::nothing;
    if (!there)
        ereport(report_level,
                (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                 errmsg("quantizer = '%s' needs LAPACK", quantizer), errdetail("%s.", reason),
                 errhint("Install liblapack.so.3, in Debian the package libopenblas0-serial.")));
    return there;
}

}  // namespace pgwarp
