// The query in the form of the index's model, and its tables, from which distances by code are
// summed.
#pragma once

#include "kernels/list_scan.h"
#include "extension/scan/state.h"

namespace pgwarp {

// The query as the model sees it, computed on first use. The pending list does not need it: its
// rows are compared with the query itself.
const float* query_form(Relation index, ScanState* s);

// Reads the list terms and the query's lookup table.
void read_tables(Relation index, ScanState* s);

// Scans codes of four bits: by the rounded tables where refinements order the candidates, and
// rounding is small beside the errors of codes.
uint32 scan_page_nibbles(const ScanState* s, const CodeColumns& columns, float list_term,
                         double bound, NibbleHit* hits);

}  // namespace pgwarp
