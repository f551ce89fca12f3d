/*
 * patch.cpp: see patch.h.
 */
#include "page/patch.h"

namespace vecgpu {

namespace {

/* As in generic_xlog.c: a run goes on over fewer equal bytes than a new one would cost. */
constexpr uint32_t kRunHeader = 2 * sizeof(OffsetNumber);

void AddRun(PagePatch *patch, uint32_t offset, const uint8_t *data, uint32_t bytes)
{
    OffsetNumber header[2] = {static_cast<OffsetNumber>(offset), static_cast<OffsetNumber>(bytes)};
    memcpy(patch->runs + patch->size, header, kRunHeader);
    memcpy(patch->runs + patch->size + kRunHeader, data, bytes);
    patch->size += kRunHeader + bytes;
}

} // namespace

void VgBeginPatch(PagePatch *patch, Relation index, Buffer buffer)
{
    patch->index = index;
    patch->buffer = buffer;
    patch->page = BufferGetPage(buffer);
    patch->size = 0;
}

void VgPatch(PagePatch *patch, uint32_t offset, const void *data, uint32_t bytes)
{
    const uint8_t *from = static_cast<const uint8_t *>(data);
    const uint8_t *at = reinterpret_cast<const uint8_t *>(patch->page) + offset;
    uint32_t i = 0;
    while (i < bytes) {
        if (from[i] == at[i]) {
            i++;
            continue;
        }
        uint32_t start = i;
        uint32_t end = ++i; /* one past the last byte that differs */
        while (i < bytes && i - end <= kRunHeader) {
            if (from[i] != at[i])
                end = i + 1;
            i++;
        }
        /* A run is longer than its header by one byte at least, so this holds for any change of one page. */
        if (patch->size + kRunHeader + (end - start) > sizeof(patch->runs))
            elog(ERROR, "too many changes of one page of index \"%s\"", RelationGetRelationName(patch->index));
        AddRun(patch, offset + start, from + start, end - start);
        i = end;
    }
}

bool VgFinishPatch(PagePatch *patch)
{
    if (patch->size == 0)
        return false;
    bool logged = RelationNeedsWAL(patch->index);
    if (logged)
        XLogBeginInsert();
    START_CRIT_SECTION();
    for (uint32_t at = 0; at < patch->size;) {
        OffsetNumber header[2];
        memcpy(header, patch->runs + at, kRunHeader);
        memcpy(patch->page + header[0], patch->runs + at + kRunHeader, header[1]);
        at += kRunHeader + header[1];
    }
    MarkBufferDirty(patch->buffer);
    if (logged) {
        if (patch->size > kPageBytes) {
            XLogRegisterBuffer(0, patch->buffer, REGBUF_FORCE_IMAGE | REGBUF_STANDARD);
        } else {
            XLogRegisterBuffer(0, patch->buffer, REGBUF_STANDARD);
            XLogRegisterBufData(0, reinterpret_cast<char *>(patch->runs), patch->size);
        }
        XLogRecPtr lsn = XLogInsert(RM_GENERIC_ID, 0); /* PageSetLSN is a macro that evaluates it twice */
        PageSetLSN(patch->page, lsn);
    }
    END_CRIT_SECTION();
    return true;
}

} // namespace vecgpu
