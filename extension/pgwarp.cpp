// Entry point of pgwarp.so.

#include "kernels/mirror.h"
#include "extension/am/alter.h"
#include "extension/am/order.h"
#include "extension/audit/audit.h"
#include "extension/conditions/bitmap_scan.h"
#include "extension/conditions/semi_join.h"
#include "extension/index/options.h"
#include "extension/join/batch_scan.h"
#include "extension/scan/explain.h"
#include "extension/scan/limit.h"
#include "extension/service/service.h"
#include "extension/service/client.h"
#include "extension/settings.h"

extern "C" {
_Pragma("GCC visibility push(default)") PG_MODULE_MAGIC;
void _PG_init(void);
_Pragma("GCC visibility pop")
}

void _PG_init(void) {
    pgwarp::define_settings();
    pgwarp::init_options();
    pgwarp::install_limit_hook();
    pgwarp::install_explain_hook();
    pgwarp::install_order_planner();
    pgwarp::install_bitmap_scans();
    pgwarp::install_join_planner();
    pgwarp::install_semi_joins();
    pgwarp::install_join_executor();
    pgwarp::request_service();
    pgwarp::request_audits();
    pgwarp::install_drop_hook();
    pgwarp::install_alter_hook();
}
