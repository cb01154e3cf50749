/* Writes and checks the trailer that guards HDF5's metadata. */
#include "checkpoint/file/seal.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { ENTRY_WORDS = 4, FOOTER_WORDS = 6, FOOTER_HASHED_WORDS = 4, CHUNK_BYTES = 1 << 20 };

static const char seal_magic[16] = "shoal seal 1\n";

/* The trailer in memory: entries, then the footer, all u64. */
struct trailer {
    uint64_t *words; /* owned [n_entries * ENTRY_WORDS + FOOTER_WORDS] */
    uint64_t n_entries;
};

static uint64_t trailer_words(uint64_t n_entries)
{
    return n_entries * ENTRY_WORDS + FOOTER_WORDS;
}

static struct status seal_fail(enum status_code code, const char *path, const char *what)
{
    return status_make(code, "%s: %s: %s", path, what, strerror(errno));
}

static struct status read_seal_at(int fd, const char *path, uint64_t offset, void *out, size_t n)
{
    for (size_t done = 0; done < n;) {
        const ssize_t got = pread(fd, (char *)out + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return seal_fail(STATUS_INPUT, path, "reading");
        if (got == 0) {
            return status_make(STATUS_INPUT, "%s: ends at byte %llu, expected more", path,
                               (unsigned long long)(offset + done));
        }
        done += (size_t)got;
    }
    return status_ok();
}

static struct status seal_write_all(int fd, const char *path, const void *bytes, size_t n)
{
    for (size_t done = 0; done < n;) {
        const ssize_t put = write(fd, (const char *)bytes + done, n - done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return seal_fail(STATUS_IO, path, "writing");
        done += (size_t)put;
    }
    return status_ok();
}

static struct status hash_region(int fd, const char *path, struct seal_extent region, char *chunk,
                                 XXH128_hash_t *out)
{
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL) return status_make(STATUS_MEMORY, "%s: no memory for a checksum", path);
    XXH3_128bits_reset(state);
    struct status st = status_ok();
    for (uint64_t done = 0; done < region.n_bytes && !status_failed(&st);) {
        const uint64_t left = region.n_bytes - done;
        const size_t n = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        st = read_seal_at(fd, path, region.offset + done, chunk, n);
        XXH3_128bits_update(state, chunk, n);
        done += n;
    }
    *out = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    return st;
}

static XXH128_hash_t trailer_hash(const struct trailer *t)
{
    const uint64_t n = t->n_entries * ENTRY_WORDS + FOOTER_HASHED_WORDS;
    return XXH3_128bits(t->words, n * sizeof t->words[0]);
}

static int extent_compare(const void *a, const void *b)
{
    const struct seal_extent *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Fills the entries with the regions between the weights' extents. */
static struct status trailer_regions(const char *path, struct seal_extent *raw, size_t n,
                                     uint64_t eoa, struct trailer *t)
{
    if (n > 0) qsort(raw, n, sizeof raw[0], extent_compare);
    uint64_t at = 0;
    for (size_t i = 0; i <= n; i++) {
        const uint64_t end = i < n ? raw[i].offset : eoa;
        if (end < at || end > eoa || (i < n && raw[i].n_bytes > eoa - end)) {
            return status_make(STATUS_IO, "%s: weights overlap at byte %llu", path,
                               (unsigned long long)end);
        }
        if (end > at) {
            uint64_t *entry = t->words + t->n_entries++ * ENTRY_WORDS;
            entry[0] = at;
            entry[1] = end - at;
        }
        at = i < n ? end + raw[i].n_bytes : end;
    }
    return status_ok();
}

static struct status trailer_fill(int fd, const char *path, uint64_t eoa, char *chunk,
                                  struct trailer *t)
{
    for (uint64_t i = 0; i < t->n_entries; i++) {
        uint64_t *entry = t->words + i * ENTRY_WORDS;
        XXH128_hash_t hash;
        TRY(hash_region(fd, path, (struct seal_extent){entry[0], entry[1]}, chunk, &hash));
        entry[2] = hash.low64;
        entry[3] = hash.high64;
    }
    uint64_t *footer = t->words + t->n_entries * ENTRY_WORDS;
    memcpy(footer, seal_magic, sizeof seal_magic);
    footer[2] = t->n_entries;
    footer[3] = eoa;
    const XXH128_hash_t hash = trailer_hash(t);
    footer[4] = hash.low64;
    footer[5] = hash.high64;
    return status_ok();
}

struct status seal_append(const char *path, struct seal_extent *raw, size_t n)
{
    struct trailer t = {0};
    char *chunk = NULL;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return seal_fail(STATUS_IO, path, "opening");
    struct stat info;
    struct status st = status_ok();
    if (fstat(fd, &info) != 0) st = seal_fail(STATUS_IO, path, "stat");
    if (status_failed(&st)) goto out;
    TRY_GOTO(st, mem_alloc(&chunk, CHUNK_BYTES, 1, "a checksum buffer"), out);
    TRY_GOTO(st, mem_alloc(&t.words, trailer_words(n + 1), sizeof t.words[0], "the seal"), out);
    TRY_GOTO(st, trailer_regions(path, raw, n, (uint64_t)info.st_size, &t), out);
    TRY_GOTO(st, trailer_fill(fd, path, (uint64_t)info.st_size, chunk, &t), out);
    if (lseek(fd, 0, SEEK_END) < 0) {
        st = seal_fail(STATUS_IO, path, "seek");
        goto out;
    }
    st = seal_write_all(fd, path, t.words, trailer_words(t.n_entries) * sizeof t.words[0]);
out:
    mem_free(&t.words);
    mem_free(&chunk);
    if (close(fd) != 0 && !status_failed(&st)) st = seal_fail(STATUS_IO, path, "close");
    return st;
}

static struct status no_seal(const char *path)
{
    return status_make(STATUS_INPUT,
                       "%s: no seal at its end; the file is cut, is no shoal checkpoint, or was "
                       "rewritten by another tool",
                       path);
}

/* Reads the whole trailer into t; the footer at its end says how long it is. */
static struct status footer_read(int fd, const char *path, uint64_t file_bytes, struct trailer *t)
{
    uint64_t footer[FOOTER_WORDS];
    if (file_bytes < sizeof footer) return no_seal(path);
    TRY(read_seal_at(fd, path, file_bytes - sizeof footer, footer, sizeof footer));
    if (memcmp(footer, seal_magic, sizeof seal_magic) != 0) return no_seal(path);
    const uint64_t eoa = footer[3];
    const uint64_t n_room = (file_bytes - sizeof footer) / (ENTRY_WORDS * sizeof footer[0]);
    if (footer[2] > n_room || eoa != file_bytes - trailer_words(footer[2]) * sizeof footer[0]) {
        return status_make(STATUS_INPUT,
                           "%s: its seal says %llu bytes of HDF5 and %llu entries, the file has "
                           "%llu bytes",
                           path, (unsigned long long)eoa, (unsigned long long)footer[2],
                           (unsigned long long)file_bytes);
    }
    t->n_entries = footer[2];
    TRY(mem_alloc(&t->words, trailer_words(t->n_entries), sizeof t->words[0], "the seal"));
    return read_seal_at(fd, path, eoa, t->words, trailer_words(t->n_entries) * sizeof t->words[0]);
}

static struct status entries_check(int fd, const char *path, uint64_t eoa, char *chunk,
                                   const struct trailer *t)
{
    uint64_t at = 0;
    for (uint64_t i = 0; i < t->n_entries; i++) {
        const uint64_t *entry = t->words + i * ENTRY_WORDS;
        if (entry[0] < at || entry[0] > eoa || entry[1] > eoa - entry[0]) {
            return status_make(STATUS_INPUT, "%s: its seal has bad bounds in entry %llu", path,
                               (unsigned long long)i);
        }
        at = entry[0] + entry[1];
        XXH128_hash_t hash;
        TRY(hash_region(fd, path, (struct seal_extent){entry[0], entry[1]}, chunk, &hash));
        if (hash.low64 != entry[2] || hash.high64 != entry[3]) {
            return status_make(STATUS_INPUT,
                               "%s: bytes [%llu, %llu) are damaged: their checksum differs from "
                               "the seal's",
                               path, (unsigned long long)entry[0], (unsigned long long)at);
        }
    }
    return status_ok();
}

static struct status check_open(int fd, const char *path, struct seal_info *out)
{
    struct trailer t = {0};
    char *chunk = NULL;
    struct stat info;
    if (fstat(fd, &info) != 0) return seal_fail(STATUS_INPUT, path, "stat");
    if (!S_ISREG(info.st_mode)) {
        return status_make(STATUS_INPUT, "%s: expected a regular file, as shoal convert makes them",
                           path);
    }
    struct status st;
    TRY_GOTO(st, footer_read(fd, path, (uint64_t)info.st_size, &t), out);
    TRY_GOTO(st, mem_alloc(&chunk, CHUNK_BYTES, 1, "a checksum buffer"), out);
    const uint64_t *footer = t.words + t.n_entries * ENTRY_WORDS;
    const XXH128_hash_t hash = trailer_hash(&t);
    if (hash.low64 != footer[4] || hash.high64 != footer[5]) {
        st = status_make(STATUS_INPUT, "%s: the seal itself is damaged", path);
        goto out;
    }
    *out = (struct seal_info){(uint64_t)info.st_size, footer[3], hash.low64, hash.high64};
    st = entries_check(fd, path, footer[3], chunk, &t);
out:
    mem_free(&chunk);
    mem_free(&t.words);
    return st;
}

struct status seal_check(const char *path, struct seal_info *out)
{
    /* O_NONBLOCK: a FIFO must be refused, not waited for */
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return status_make(STATUS_INPUT, "%s: %s", path, strerror(errno));
    const struct status st = check_open(fd, path, out);
    close(fd);
    return st;
}
