// What the plan says about the rows that will be fetched from a scan: how many, and how far away.
#pragma once

#include "extension/scan/bound.h"
#include "extension/scan/conditions.h"
#include "extension/scan/rows.h"

extern "C" {
#include "access/genam.h"
#include "access/relscan.h"
#include "nodes/execnodes.h"
}

namespace pgwarp {

// For a scan that is about to return its first row.
struct WantedRows {
    uint32 rows;      // expected number of fetched rows: a hint, never a promise
    Size in_order;    // most rows fetched, LIMIT plus OFFSET; 0: unknown
    uint32 filtered;  // `rows` that pass the plan's filters, LIMIT plus OFFSET if known
    Size of_group;    // of all scans of its group, LIMIT plus OFFSET; 0: unknown, or no group
};
WantedRows wanted_rows(IndexScanDesc scan);

// Scans whose rows one Merge Append merges: of the partitions of a table (partitions.h). The first
// that is asked for a row begins them all.
struct ScanGroup;
ScanGroup* group_of(IndexScanDesc scan);  // null: none, or its rows have no LIMIT
// Rows that LIMIT wants of all scans of the group.
double group_rows(const ScanGroup* group);
int group_size(const ScanGroup* group);
// Whether the plan reads no more rows than these: LIMIT is right above the Merge Append.
bool reads_only_limit(const ScanGroup* group);
// Whether a scan of the group returns all its rows to the Merge Append: no filter is left.
bool returns_all_rows(IndexScanDesc scan);
// Begins a scan of the group, if it is one of an ivfpq index that the plan will read, and the
// executor has not begun it: as the executor would. Null otherwise.
IndexScanDesc begin_member(const ScanGroup* group, int member);
// The share of the group's rows that the scan's table has, by the plan.
double part_share(IndexScanDesc scan);
// Rows that the scan shall find, out of the group's.
void set_part_rows(IndexScanDesc scan, double rows);

// The plan's filters, for the scan to check: it then knows how many of its rows pass. None where
// the plan has none, where there is no LIMIT, or where a filter must be checked once for each row
// that is fetched, and for no other. The scan's keys come before them where entries may only seem
// to pass: a filter sees no row that the keys exclude, and rough keys count as filters.
RowFilter wanted_filter(IndexScanDesc scan, const Conditions& conditions);

// The plan's estimate of the share of rows that pass the scan's keys; 0: it has none.
double planned_share(IndexScanDesc scan);

// Rows of a bitmap of other indexes, which a custom scan above the scan has found (conditions/).
// Told before the scan begins; the next rescan may have others.
struct BitmapOfScan {
    const RowSet* rows;    // null: the scan searches all rows of the table
    double passing_share;  // of the rows searched: that which passes the filters; 0: unknown
    bool ranks_rows;       // the scan ranks all of these rows, and reads no list
};
void set_bitmap(const IndexScanState* scan, const BitmapOfScan& bitmap);
// The name of that custom scan's methods, by which it is recognised. It passes rows on one by one.
inline constexpr char bitmap_scan_name[] = "Ivfpq Bitmap";

// A condition that a custom scan above the scan has found: a key of the scan beside its own
// (conditions/). Told before the scan begins; the next rescan may have another.
void set_further_key(const IndexScanState* scan, const ScanKeyData* key);
inline constexpr char semi_join_name[] = "Ivfpq Semi Join";

// The scan's keys on attributes, and filters of the plan that are like them. Allocated in the
// current memory context.
Conditions wanted_conditions(IndexScanDesc scan);

// The bound that the query's conditions set on the distance that the scan is ordered by.
DistanceBound wanted_bound(IndexScanDesc scan, Metric metric);

// Installs the executor hook that notes the ivfpq scans of a query.
void install_limit_hook();

}  // namespace pgwarp
