#include <cstring>

#include "extension/index/buffers.h"
#include "extension/index/page_changes.h"

extern "C" {
#include "access/generic_xlog.h"
#include "access/nbtxlog.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "storage/standby.h"
#include "miscadmin.h"
#include "mb/pg_wchar.h"
#include "storage/lmgr.h"
#include "utils/timestamp.h"
}

namespace pgwarp {

namespace {

bool in_training_run(const MetaPage& meta, BlockNumber block) {
    const auto in_run = [block](const MetaPage& of) {
        return of.lists > 0 && block >= of.centroids && block < training_end(of);
    };
    return in_run(meta) || in_run(meta_of_other(meta));
}

// Whether a page belongs to no structure: it was added by an extension that a crash or an error cut
// short, or written by a training that did not finish.
bool is_lost(Page page, BlockNumber block, const MetaPage& meta) {
    if (PageIsNew(page)) return true;
    if (!page_is_sound(page)) return false;
    switch (page_tail(page)->kind) {
        case PageKind::centroids:
        case PageKind::codebook:
        case PageKind::rotation:
        case PageKind::parents:
        case PageKind::parent_places:
        case PageKind::directory:
            return !in_training_run(meta, block);
        default:
            return false;
    }
}

}  // namespace

BlockNumber extend_by(Relation index, BlockNumber pages) {
    // The extension lock over the whole run keeps it contiguous.
    const bool lock = !RELATION_IS_LOCAL(index);
    if (lock) LockRelationForExtension(index, ExclusiveLock);
    const BlockNumber first = RelationGetNumberOfBlocks(index);
    for (BlockNumber i = 0; i < pages; ++i) UnlockReleaseBuffer(compat_extend(index, true));
    if (lock) UnlockRelationForExtension(index, ExclusiveLock);
    return first;
}

void write_page(Relation index, BlockNumber block, Page image) {
    check_block(index, block);
    const Buffer buffer = ReadBuffer(index, block);
    LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
    GenericXLogState* state = GenericXLogStart(index);
    memcpy(GenericXLogRegisterBuffer(state, buffer, GENERIC_XLOG_FULL_IMAGE), image, BLCKSZ);
    GenericXLogFinish(state);
    UnlockReleaseBuffer(buffer);
}

MetaPage written_over(const MetaPage& trained, const MetaPage& now) {
    MetaPage changed = trained;
    changed.pending = now.pending;
    changed.free_head = now.free_head;
    changed.free_pages = now.free_pages;
    changed.refinement_pages = now.version < 6 ? 0 : now.refinement_pages;
    changed.other = now.other;
    // A page of an older version gets all fields of this one.
    changed.version = format_version;
    if (now.version < 5) changed.first_curve = {};
    return changed;
}

void write_training(Relation index, const MetaPage& trained) {
    const Buffer buffer = read_page(index, meta_block, PageKind::meta, BUFFER_LOCK_EXCLUSIVE);
    GenericXLogState* state = GenericXLogStart(index);
    MetaPage* meta = page_meta(GenericXLogRegisterBuffer(state, buffer, 0));
    *meta = written_over(trained, *meta);
    GenericXLogFinish(state);
    UnlockReleaseBuffer(buffer);
}

void write_other_lists(Relation index, const OtherLists& other) {
    const Buffer buffer = read_page(index, meta_block, PageKind::meta, BUFFER_LOCK_EXCLUSIVE);
    GenericXLogState* state = GenericXLogStart(index);
    page_meta(GenericXLogRegisterBuffer(state, buffer, 0))->other = other;
    GenericXLogFinish(state);
    UnlockReleaseBuffer(buffer);
}

void log_conflict(Relation index, BlockNumber block, FullTransactionId last) {
    if (!RelationNeedsWAL(index) || !XLogStandbyInfoActive()) return;
    // A standby passes over numbers that it has not met. A transaction may have one and have
    // written nothing yet.
    LogStandbySnapshot();
    // Replay of this record does nothing else; the page is not touched.
    xl_btree_reuse_page record = compat_reuse_page(index, block, last);
    XLogBeginInsert();
    XLogRegisterData(reinterpret_cast<char*>(&record), SizeOfBtreeReusePage);
    XLogInsert(RM_BTREE_ID, XLOG_BTREE_REUSE_PAGE);
}

bool write_learned(Relation index, const MetaPage& seen, const MetaPage& changed) {
    const Buffer buffer = read_page(index, meta_block, PageKind::meta, BUFFER_LOCK_EXCLUSIVE);
    const MetaPage* old = page_meta(BufferGetPage(buffer));
    const bool same = old->version >= 5 && old->curve_at == seen.curve_at &&
                      old->learned_plain.at == seen.learned_plain.at &&
                      old->learned_with_conditions.at == seen.learned_with_conditions.at;
    if (same) {
        GenericXLogState* state = GenericXLogStart(index);
        MetaPage* meta = page_meta(GenericXLogRegisterBuffer(state, buffer, 0));
        meta->learned_plain = changed.learned_plain;
        meta->learned_with_conditions = changed.learned_with_conditions;
        GenericXLogFinish(state);
    }
    UnlockReleaseBuffer(buffer);
    return same;
}

void add_removed_rows(Relation index, double rows) {
    if (rows == 0) return;
    const Buffer buffer = read_page(index, meta_block, PageKind::meta, BUFFER_LOCK_EXCLUSIVE);
    GenericXLogState* state = GenericXLogStart(index);
    page_meta(GenericXLogRegisterBuffer(state, buffer, 0))->removed_rows +=
        static_cast<uint64>(rows);
    GenericXLogFinish(state);
    UnlockReleaseBuffer(buffer);
}

void write_pending_reason(Relation index, const char* message) {
    PendingReason reason = {};
    // Whole characters, and a zero at the end.
    memcpy(reason.message, message,
           pg_mbcliplen(message, static_cast<int>(strlen(message)), PendingReason::room - 1));
    reason.since = message[0] ? GetCurrentTimestamp() : 0;
    const Buffer buffer = read_page(index, meta_block, PageKind::meta, BUFFER_LOCK_EXCLUSIVE);
    const PendingReason* old = &page_meta(BufferGetPage(buffer))->pending_reason;
    if (memcmp(old->message, reason.message, PendingReason::room) != 0) {
        GenericXLogState* state = GenericXLogStart(index);
        page_meta(GenericXLogRegisterBuffer(state, buffer, 0))->pending_reason = reason;
        GenericXLogFinish(state);
    }
    UnlockReleaseBuffer(buffer);
}

BlockNumber reclaim_lost_pages(Relation index, const MetaPage& meta) {
    BlockNumber reclaimed = 0;
    const BlockNumber blocks = RelationGetNumberOfBlocks(index);
    for (BlockNumber block = meta_block + 1; block < blocks; ++block) {
        CHECK_FOR_INTERRUPTS();
        Buffer buffer = look_up_buffer(index, block);
        LockBuffer(buffer, BUFFER_LOCK_SHARE);
        const bool lost = is_lost(BufferGetPage(buffer), block, meta);
        UnlockReleaseBuffer(buffer);
        if (!lost) continue;

        const Buffer meta_buffer =
            read_page(index, meta_block, PageKind::meta, BUFFER_LOCK_EXCLUSIVE);
        buffer = look_up_buffer(index, block);
        LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
        if (is_lost(BufferGetPage(buffer), block, meta)) {
            GenericXLogState* state = GenericXLogStart(index);
            MetaPage* changed = page_meta(GenericXLogRegisterBuffer(state, meta_buffer, 0));
            Page page = GenericXLogRegisterBuffer(state, buffer, GENERIC_XLOG_FULL_IMAGE);
            page_init(page, PageKind::free, 0);
            page_tail(page)->next = changed->free_head;
            changed->free_head = block;
            ++changed->free_pages;
            GenericXLogFinish(state);
            ++reclaimed;
        }
        UnlockReleaseBuffer(buffer);
        UnlockReleaseBuffer(meta_buffer);
    }
    return reclaimed;
}

}  // namespace pgwarp
