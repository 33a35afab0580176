// Scans that have conditions of other indexes.
//
//   SELECT ... FROM items WHERE tags @> '{7}' ORDER BY embedding <-> $1 LIMIT 10
//
// Where another index has the condition, PostgreSQL makes a bitmap of the rows that pass: by one
// index of any kind, or by several (BitmapAnd, BitmapOr). The planner hook (bitmap_plan.cpp) adds a
// custom scan with two children, that bitmap and the ordered scan of an ivfpq index. The custom
// scan (bitmap_execute.cpp) has the bitmap made, and gives its rows to the ordered scan as one more
// condition (scan/row_set.h); then it passes the ordered scan's rows on. The ordered scan still has
// all of WHERE as its filter: so lossy pages, policies of row security, visibility, and rechecks of
// rows that were locked are its own, as without a bitmap.
//
// When the bitmap is there, the custom scan knows how many rows pass, and chooses the way that
// costs least: few rows are read and sorted, without the lists; where most pass, they are filtered
// as they come; between, the scan takes the lists that rows of the bitmap need. The planner has
// found the borders, with its costs.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "nodes/extensible.h"
}

namespace pgwarp {

// What the planner tells the custom scan.
struct BitmapPlan {
    double most_ranked;     // rows of the largest bitmap whose rows are ranked without the lists
    double least_filtered;  // rows of the smallest one with which the scan filters all rows
    double passing;         // the share of the bitmap's rows that passes the rest of WHERE
    double rows_of_page;    // of the table
};
List* make_bitmap_private(const BitmapPlan& plan);
BitmapPlan bitmap_plan_of(const CustomScan* scan);

extern const CustomScanMethods bitmap_scan_methods;

// Installs the hook of the planner, and the custom scan.
void install_bitmap_scans();

}  // namespace pgwarp
