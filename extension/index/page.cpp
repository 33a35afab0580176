#include <algorithm>

#include "kernels/list_plan.h"
#include "kernels/quantizer.h"
#include "extension/index/attributes.h"
#include "extension/index/buffers.h"
#include "extension/index/change_counts.h"
#include "extension/index/column.h"
#include "extension/index/page.h"

extern "C" {
#include "access/xlog.h"
}

namespace pgwarp {

namespace {

// A block number read from a damaged page must not reach ReadBuffer: InvalidBlockNumber would
// extend the index there. Getting the size is a system call, so a backend caches it for indexes
// that it used last: a search of partitions goes from one to the other. An index shrinks only when
// it is built again, see forget_size().
struct SeenSize {
    Oid index;
    Oid file;
    BlockNumber blocks;
};
SeenSize seen_sizes[256];

bool has_block(Relation index, BlockNumber block) {
    const Oid oid = RelationGetRelid(index);
    const Oid file = compat_file_number(index);
    SeenSize* seen = &seen_sizes[oid % lengthof(seen_sizes)];
    if (seen->index == oid && seen->file == file && block < seen->blocks) return true;
    *seen = {oid, file, RelationGetNumberOfBlocks(index)};
    return block < seen->blocks;
}

bool curve_is_sound(const RecallCurve& curve, uint32 lists) {
    if (curve.steps > RecallCurve::max_steps || curve.by_query_steps > RecallCurve::max_steps)
        return false;
    for (uint32 i = 0; i < curve.steps; ++i)
        if (curve.probes[i] == 0 || curve.probes[i] > lists) return false;
    return curve.queries[0] == 0 || curve.steps > 0;
}

// Checks the fields from which code computes sizes of arrays, numbers of pages and blocks of runs
// without further checks.
bool model_is_sound(const MetaPage& meta) {
    if (!curve_is_sound(meta.curve, meta.lists)) return false;
    if (meta.other.lists > max_lists) return false;
    if (meta.lists == 0) return true;
    if (meta.lists > max_lists || meta.m == 0 || meta.m > meta.code_dims * meta.bits / 8 ||
        meta.m > max_m || (meta.quantizer == QuantizerKind::lsq && meta.m > max_lsq_m))
        return false;
    if (meta.codebook != meta.centroids + centroid_pages(meta) ||
        meta.rotation != meta.codebook + codebook_pages(meta) ||
        meta.parent_rows != meta.rotation + rotation_pages(meta) ||
        meta.parent_places != meta.parent_rows + parent_row_pages(meta) ||
        meta.directory != meta.parent_places + parent_place_pages(meta))
        return false;
    if (meta.parents > meta.lists || meta.parents > max_parents) return false;
    return true;
}

// Code that sees only the model's shape takes search_rounds > 0 for additive codes.
bool search_is_sound(const MetaPage& meta) {
    if (meta.quantizer != QuantizerKind::lsq) return meta.search_rounds == 0;
    return meta.search_rounds > 0 && meta.search_rounds <= max_search_rounds && meta.bits == 8;
}

bool attributes_are_sound(const MetaPage& meta) {
    const AttributeLayout& attributes = meta.attributes;
    if (attributes.count > max_attributes) return false;
    for (uint32 i = 0; i < attributes.count; ++i) {
        const uint8 bytes = attributes.bytes[i];
        if ((bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8) ||
            meta.attribute_kinds[i] < AttributeKind::ordered ||
            meta.attribute_kinds[i] > AttributeKind::signature)
            return false;
    }
    const uint32 more = meta.refinement == RefinementKind::none ? 0 : refined_entry_bytes;
    return std::max(meta.m, meta.other.m) + attributes.entry_bytes() + more <= max_entry_bytes;
}

bool refinement_is_sound(const MetaPage& meta) {
    if (meta.refinement == RefinementKind::none) return meta.refinement_pages == 0;
    return meta.refinement == RefinementKind::int8 && meta.dims <= max_refined_dims &&
           meta.code_dims == meta.dims;
}

bool meta_is_sound(const MetaPage& meta) {
    return refinement_is_sound(meta) && attributes_are_sound(meta) && meta.dims > 0 &&
           meta.dims <= max_dims && can_index(meta.metric) && (meta.bits == 4 || meta.bits == 8) &&
           meta.quantizer <= QuantizerKind::lsq && search_is_sound(meta) && meta.wide <= 1 &&
           meta.has_undirected_list <= 1 && meta.code_dims > 0 && meta.code_dims <= meta.dims &&
           (has_rotation(meta) || meta.code_dims == meta.dims) && meta.asked_lists <= max_lists &&
           meta.asked_parents <= max_parents && meta.asked_m <= max_m && model_is_sound(meta);
}

// The curve of an older format version: it was measured for two k, and for fixed numbers of lists.
RecallCurve converted(const FirstCurve& first) {
    RecallCurve curve = {};
    curve.steps = first.probe_steps;
    if (curve.steps > RecallCurve::max_steps) return curve;  // not sound
    std::copy_n(first.probes, curve.steps, curve.probes);
    std::copy_n(first.scanned, curve.steps, curve.scanned);
    for (int k = 0; k < RecallCurve::ks && first.queries > 0; ++k) {
        const int from = RecallCurve::k_values[k] <= 10 ? 0 : 1;
        if (RecallCurve::k_values[k] > 100) continue;
        curve.queries[k] = first.queries;
        curve.error[k] = RecallCurve::unknown_error;
        for (uint32 step = 0; step < curve.steps; ++step)
            std::copy_n(first.recall[from][step], RecallCurve::factors, curve.recall[k][step]);
    }
    return curve;
}

// Sets the fields that an older format version lacks.
void complete_meta(MetaPage* meta) {
    if (meta->version < 8) {
        meta->has_undirected_list = 0;
        meta->learned_with_conditions = {};
    }
    if (meta->version < 7) {
        meta->parents = meta->asked_parents = 0;
        meta->parent_rows = meta->parent_places = meta->directory;
    }
    if (meta->version < 6) {
        meta->refinement = RefinementKind::none;
        meta->refinement_pages = 0;
    }
    if (meta->version < 5) {
        meta->curve = converted(meta->first_curve);
        meta->first_curve = {};
        meta->curve_source = CurveSource::rows;
        meta->curve_at = 0;
        meta->learned_plain = {};
    }
    // A VACUUM measures it again.
    if (meta->list_rule != list_rule) meta->curve = {};
    if (meta->version < 4) meta->attributes = {};
    if (meta->version < 3) meta->search_rounds = 0;
    if (meta->version > 1) return;
    meta->quantizer = QuantizerKind::pq;
    meta->code_dims = meta->dims;
    meta->rotation = meta->directory;
}

Buffer read_sound_page(Relation index, BlockNumber block, int lock) {
    check_block(index, block);
    const Buffer buffer = find_buffer(index, block);
    if (waits_for_itself(buffer, lock))
        report_damage(index, block, "a page points to it that should not");
    LockBuffer(buffer, compat_lock_mode(lock));
    if (!page_is_sound(BufferGetPage(buffer)))
        report_damage(index, block, "it is no page of an ivfpq index");
    return buffer;
}

}  // namespace

bool page_is_sound(Page page) {
    // A hole would be zeroed by the next change: see page_init().
    const auto* header = reinterpret_cast<PageHeader>(page);
    return !PageIsNew(page) && PageGetSpecialSize(page) == MAXALIGN(sizeof(PageTail)) &&
           header->pd_lower == header->pd_special && header->pd_upper == header->pd_special &&
           page_tail(page)->kind >= PageKind::meta &&
           page_tail(page)->kind <= PageKind::parent_places;
}

void check_block(Relation index, BlockNumber block) {
    if (!has_block(index, block))
        report_damage(index, block, "a page points behind the end of the index");
}

void forget_size() {
    std::fill_n(seen_sizes, lengthof(seen_sizes), SeenSize{});
}

void report_damage(Relation index, BlockNumber block, const char* what) {
    ereport(ERROR,
            (errcode(ERRCODE_INDEX_CORRUPTED),
             errmsg("index \"%s\" is damaged at block %u", RelationGetRelationName(index), block),
             errdetail("%s.", what), errhint("Please REINDEX it.")));
    pg_unreachable();
}

Buffer read_page(Relation index, BlockNumber block, PageKind kind, int lock) {
    const Buffer buffer = read_sound_page(index, block, lock);
    if (page_tail(BufferGetPage(buffer))->kind != kind)
        report_damage(index, block, "it is a page of another kind");
    return buffer;
}

bool read_list_page(Relation index, BlockNumber block, uint32 list, const EntryLayout& layout,
                    int lock, Buffer* buffer) {
    *buffer = read_sound_page(index, block, lock);
    const PageTail* tail = page_tail(BufferGetPage(*buffer));
    if (tail->kind != PageKind::list || tail->list != list) {
        UnlockReleaseBuffer(*buffer);
        *buffer = InvalidBuffer;
        return false;
    }
    if (tail->count > layout.capacity)
        report_damage(index, block, "it claims more entries than a page can hold");
    if (BlockNumberIsValid(tail->next) && tail->count != layout.capacity)
        report_damage(index, block, "it is not full, and not the last of its list");
    return true;
}

bool step_is_possible(Relation index, const ListPlace& place, BlockNumber* steps) {
    // A list may have grown since its place was read. Only then is the size of the index looked up.
    return ++*steps <= place.pages || *steps <= RelationGetNumberOfBlocks(index);
}

void count_step(Relation index, BlockNumber block, const ListPlace& place, BlockNumber* steps) {
    if (!step_is_possible(index, place, steps)) report_damage(index, block, chain_has_loop);
}

MetaPage read_meta(Relation index) {
    const Buffer buffer = read_page(index, meta_block, PageKind::meta, BUFFER_LOCK_SHARE);
    MetaPage meta = *page_meta(BufferGetPage(buffer));
    UnlockReleaseBuffer(buffer);
    if (meta.magic != format_magic) report_damage(index, meta_block, "its magic number is wrong");
    if (meta.version < oldest_format_version || meta.version > format_version)
        ereport(ERROR,
                (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                 errmsg("index \"%s\" has format version %u, this pgwarp reads versions %u to %u",
                        RelationGetRelationName(index), meta.version, oldest_format_version,
                        format_version),
                 errhint("Please REINDEX it.")));
    complete_meta(&meta);
    meta.element_bytes = static_cast<uint8>(type_of(index).value_bytes());
    // A column of type vector, without dimensions (any more), gives nothing to compare with.
    const uint32 dims = declared_dims(index);
    if (!meta_is_sound(meta) || (dims > 0 && meta.dims != dims))
        report_damage(index, meta_block, "it describes an impossible index");
    if (!describes_attributes(meta, index))
        report_damage(index, meta_block, "it describes other columns than the index has");
    if (!has_block(index, meta.pending.pages) || !has_block(index, meta.free_pages) ||
        !has_block(index, meta.refinement_pages))
        report_damage(index, meta_block, "it claims more pages than the index has");
    return meta;
}

namespace {

// The growth of lists as this backend found it last, and the changes of the index up to then.
struct SeenGrowth {
    uint64 build_id;
    uint64 changes;
    double growth;
};
SeenGrowth seen_growths[256];

double pages_of_lists(Relation index, const MetaPage& meta) {
    double pages = 0;
    for (BlockNumber block = meta.directory; block < training_end(meta); ++block) {
        const Buffer buffer = read_page(index, block, PageKind::directory, BUFFER_LOCK_SHARE);
        const ListPlace* places = page_places(BufferGetPage(buffer));
        const uint32 first = (block - meta.directory) * places_per_page;
        const uint32 count = std::min(directory_lists(meta) - first, places_per_page);
        for (uint32 i = 0; i < count; ++i) pages += places[i].pages;
        UnlockReleaseBuffer(buffer);
    }
    return pages;
}

double measure_growth(Relation index, const MetaPage& meta) {
    const double model = 1.0 + training_end(meta) - meta.centroids;
    const double others =
        static_cast<double>(meta.free_pages) + meta.pending.pages + meta.refinement_pages;
    const double pages = meta.other.lists > 0 ? pages_of_lists(index, meta)
                                              : RelationGetNumberOfBlocks(index) - model - others;
    // The last page of a list is half full.
    const double capacity = layout_of(meta, 0).capacity;
    const double at_build = static_cast<double>(measured_rows(meta)) / capacity + meta.lists / 2.0;
    // Lists of one page, or pages with room that deleted entries left, are no growth.
    constexpr double by_chance = 1.2;
    constexpr double most = 64;  // VACUUM measures the curve anew long before
    const double growth = pages / std::max(at_build, 1.0);
    return growth < by_chance ? 1 : std::min(growth, most);
}

}  // namespace

// The size of a file is a system call, which a search of many partitions would make for each. Where
// changes are counted, that is not needed while there are none; replay counts nothing.
double list_growth(Relation index, const MetaPage& meta) {
    if (!change_counts || RecoveryInProgress()) return measure_growth(index, meta);
    const uint64 changes = ListChanges(index).of_index();
    pg_read_barrier();
    SeenGrowth* seen = &seen_growths[RelationGetRelid(index) % lengthof(seen_growths)];
    if (seen->build_id != meta.build_id || seen->changes != changes)
        *seen = {meta.build_id, changes, measure_growth(index, meta)};
    return seen->growth;
}

void page_init(Page page, PageKind kind, uint32 list) {
    PageInit(page, BLCKSZ, sizeof(PageTail));
    // No hole: WAL records leave out the bytes between pd_lower and pd_upper.
    reinterpret_cast<PageHeader>(page)->pd_lower = reinterpret_cast<PageHeader>(page)->pd_upper;
    PageTail* tail = page_tail(page);
    tail->list = list;
    tail->next = InvalidBlockNumber;
    tail->prev = InvalidBlockNumber;
    tail->count = 0;
    tail->kind = kind;
}

void put_entry(Page page, const EntryLayout& layout, uint32 slot, const Entry& entry) {
    Assert(slot < layout.capacity);
    page_tids(page, layout)[slot] = entry.tid;
    if (layout.m == 0) return;
    page_offsets(page, layout)[slot] = entry.offset;
    uint8* codes = page_codes(page) + slot;
    for (uint32 j = 0; j < layout.m; ++j) codes[j * layout.capacity] = entry.code[j];
    const uint8* attributes = entry.attributes;
    uint8* column = page_attributes(page, layout);
    for_each_attribute(layout.attributes, [&](uint32 bytes) {
        memcpy(column + Size{slot} * bytes, attributes, bytes);
        attributes += bytes;
        column += Size{layout.capacity} * bytes;
    });
}

Size copied_bytes(const EntryLayout& layout) {
    return layout.m + layout.attributes.entry_bytes() + 1;
}

Entry entry_at(Page page, const EntryLayout& layout, uint32 slot, uint8* room) {
    Entry entry;
    entry.tid = page_tids(page, layout)[slot];
    entry.offset = layout.m ? page_offsets(page, layout)[slot] : 0;
    for (uint32 j = 0; j < layout.m; ++j) room[j] = page_codes(page)[j * layout.capacity + slot];
    entry.code = layout.m ? room : nullptr;
    uint8* attributes = room + layout.m;
    entry.attributes = attributes;
    const uint8* column = page_attributes(page, layout);
    for_each_attribute(layout.attributes, [&](uint32 bytes) {
        memcpy(attributes, column + Size{slot} * bytes, bytes);
        attributes += bytes;
        column += Size{layout.capacity} * bytes;
    });
    return entry;
}

Buffer read_refinement_page(Relation index, Buffer list_page, const EntryLayout& layout,
                            uint32 slot, int lock) {
    Page page = BufferGetPage(list_page);
    const BlockNumber block = page_refinements(page, layout)[slot / layout.refinement.per_page];
    const Buffer buffer = read_page(index, block, PageKind::refinement, lock);
    const PageTail* tail = page_tail(BufferGetPage(buffer));
    if (tail->list != page_tail(page)->list || tail->prev != BufferGetBlockNumber(list_page))
        report_damage(index, block, "it has the refinements of another page");
    return buffer;
}

bool find_refinement_page(Relation index, BlockNumber block, Buffer* buffer) {
    *buffer = read_sound_page(index, block, BUFFER_LOCK_SHARE);
    if (page_tail(BufferGetPage(*buffer))->kind == PageKind::refinement) return true;
    UnlockReleaseBuffer(*buffer);
    *buffer = InvalidBuffer;
    return false;
}

void put_refinement(Page page, const EntryLayout& layout, uint32 slot, const Entry& entry) {
    RefinementRecord* record = page_record(page, layout.refinement, slot);
    memcpy(&record->head, entry.refinement, sizeof(record->head));
    record->tid = entry.tid;
    memcpy(record_codes(record), entry.refinement + sizeof(record->head), layout.refinement.dims);
}

const uint8* copy_refinement(Page page, const EntryLayout& layout, uint32 slot, uint8* room) {
    const RefinementRecord* record = page_record(page, layout.refinement, slot);
    memcpy(room, &record->head, sizeof(record->head));
    memcpy(room + sizeof(record->head), record_codes(record), layout.refinement.dims);
    return room;
}

}  // namespace pgwarp
