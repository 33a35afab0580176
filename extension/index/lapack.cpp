#include <exception>

#include "kernels/lapack.h"
#include "extension/index/lapack.h"

namespace pgwarp {

namespace {

// Writes why LAPACK cannot be loaded; leaves `reason` alone if it can.
void lapack_is_there(char* reason, Size size) {
    try {
        require_lapack();
    } catch (const std::exception& error) {
        strlcpy(reason, error.what(), size);
    }
}

}  // namespace

bool check_lapack(const char* quantizer, int report_level) {
    char reason[256] = "";
    lapack_is_there(reason, sizeof(reason));
    if (reason[0])
        ereport(report_level,
                (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                 errmsg("quantizer = '%s' needs LAPACK", quantizer), errdetail("%s.", reason),
                 errhint("Install liblapack.so.3, in Debian the package libopenblas0-serial.")));
    return reason[0] == '\0';
}

}  // namespace pgwarp
