/* Keeps KV blocks of shared prefixes in a folder: FOLDER/xx/KEY.PART, xx being the key's first
 * byte. FOLDER/written has one byte for every WRITTEN_UNIT bytes that all writers have written
 * since the last sweep. */
#include "attention/kv_store.h"

#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { PATH_BYTES = 2048, N_FOLDERS = 256, KEY_DIGITS = 32, WRITTEN_UNIT = 1 << 16 };
static const char MAGIC[8] = {'s', 'h', 'o', 'a', 'l', 'k', 'v', '1'};

/* A file: this, then layers [n_layers], sums [n_layers, heads], a checksum of all these, and the
 * data: pieces [n_layers, heads]. A piece has a head's halves and the layer's index keys, so that
 * it can be read without the other heads. */
struct store_header {
    char magic[8];
    struct kv_store_key key;
    uint32_t n_layers, head_begin, head_end, n_halves;
    uint64_t half_bytes; /* of a piece, divided by n_halves */
};

struct kv_store {
    struct kv_store_part part;
    uint32_t *layers; /* owned: part.layers */
    char dir[1024];
    uint64_t most_bytes;
    uint64_t unswept_bytes; /* written by this process since its last sweep */
    char *buffer; /* owned; a whole file to write, or one head of one layer that was read */
    uint64_t index_bytes, file_bytes;
    uint64_t part_hash, n_written;
};

static uint32_t n_heads(const struct kv_store_part *p)
{
    return p->head_end - p->head_begin;
}

static uint64_t piece_bytes(const struct kv_store_part *p)
{
    return p->n_halves * p->half_bytes + p->beside_bytes;
}

/* Returns the offset in a part at which half w of a head begins; w = n_halves: the index keys. */
static uint64_t part_place(const struct kv_store_part *p, uint64_t layer, uint64_t head, uint64_t w)
{
    const uint64_t heads = n_heads(p);
    const uint64_t layer_bytes = p->n_halves * heads * p->half_bytes + p->beside_bytes;
    return layer * layer_bytes + (w * heads + (w < p->n_halves ? head : 0)) * p->half_bytes;
}

static uint64_t half_bytes_of(const struct kv_store_part *p, uint64_t w)
{
    return w < p->n_halves ? p->half_bytes : p->beside_bytes;
}

/* Bytes of a file before its data. */
static uint64_t index_bytes_of(const struct store_header *h)
{
    const uint64_t heads = h->head_end - h->head_begin;
    return sizeof *h + h->n_layers * (sizeof(uint32_t) + heads * sizeof(uint64_t)) +
           sizeof(uint64_t);
}

struct kv_store_key kv_store_key_of(struct kv_store_key before, const int32_t *tokens)
{
    char bytes[sizeof before + KV_BLOCK_TOKENS * sizeof *tokens];
    memcpy(bytes, &before, sizeof before);
    memcpy(bytes + sizeof before, tokens, KV_BLOCK_TOKENS * sizeof *tokens);
    const XXH128_hash_t h = XXH3_128bits(bytes, sizeof bytes);
    return (struct kv_store_key){h.low64, h.high64};
}

static void name_folder(const struct kv_store *s, unsigned i, char *path)
{
    snprintf(path, PATH_BYTES, "%s/%02x", s->dir, i);
}

static void name_key(struct kv_store_key key, char *name)
{
    snprintf(name, KEY_DIGITS + 1, "%016" PRIx64 "%016" PRIx64, key.high, key.low);
}

static unsigned folder_of(struct kv_store_key key)
{
    return (unsigned)(key.high >> 56);
}

struct status kv_store_create(const char *dir, uint64_t n_bytes, bool sweeps,
                              const struct kv_store_part *part, struct kv_store **out)
{
    *out = NULL;
    struct kv_store *s = NULL;
    TRY(mem_alloc(&s, 1, sizeof *s, "prefix store"));
    s->part = *part;
    s->most_bytes = n_bytes;
    snprintf(s->dir, sizeof s->dir, "%s", dir);
    const struct store_header h = {
        .n_layers = part->n_layers, .head_begin = part->head_begin, .head_end = part->head_end};
    s->index_bytes = index_bytes_of(&h);
    s->file_bytes = s->index_bytes + (uint64_t)part->n_layers * n_heads(part) * piece_bytes(part);
    struct status st = mem_alloc(&s->layers, part->n_layers + 1, sizeof *s->layers, "prefix store");
    if (!status_failed(&st)) st = mem_alloc(&s->buffer, s->file_bytes, 1, "prefix store");
    if (!status_failed(&st) && mkdir(dir, 0777) != 0 && errno != EEXIST)
        st = status_make(STATUS_IO, "--prefix-store: %s: %s", dir, strerror(errno));
    for (unsigned i = 0; !status_failed(&st) && i < N_FOLDERS; i++) {
        char path[PATH_BYTES];
        name_folder(s, i, path);
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            st = status_make(STATUS_IO, "--prefix-store: %s: %s", path, strerror(errno));
    }
    if (status_failed(&st)) {
        kv_store_destroy(&s);
        return st;
    }
    memcpy(s->layers, part->layers, part->n_layers * sizeof *s->layers);
    s->part.layers = s->layers;
    s->part_hash = XXH3_64bits(s->layers, part->n_layers * sizeof *s->layers);
    if (sweeps) kv_store_sweep(s);
    *out = s;
    return st;
}

void kv_store_destroy(struct kv_store **store)
{
    if (*store == NULL) return;
    mem_free(&(*store)->layers);
    mem_free(&(*store)->buffer);
    mem_free(store);
}

static bool is_folder(const struct dirent *entry, const char *path)
{
    struct stat found;
    if (entry->d_type != DT_UNKNOWN) return entry->d_type == DT_DIR;
    return lstat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

/* Calls visit for the path of each of a block's files until visit returns false. Skips folders:
 * shoal makes none with a block's name, and does not remove any. */
static void for_files(const struct kv_store *s, struct kv_store_key key,
                      bool (*visit)(void *user, const char *path), void *user)
{
    char folder[PATH_BYTES], path[PATH_BYTES + 512], name[KEY_DIGITS + 1];
    name_folder(s, folder_of(key), folder);
    name_key(key, name);
    DIR *d = opendir(folder);
    const struct dirent *entry;
    while (d != NULL && (entry = readdir(d)) != NULL) {
        if (strncmp(entry->d_name, name, KEY_DIGITS) != 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (is_folder(entry, path)) continue;
        if (!visit(user, path)) break;
    }
    if (d != NULL) closedir(d);
}

static bool found_one(void *user, const char *path)
{
    (void)path;
    *(bool *)user = true;
    return false;
}

bool kv_store_has(const struct kv_store *s, struct kv_store_key key)
{
    bool found = false;
    for_files(s, key, found_one, &found);
    return found;
}

/* --- writing ------------------------------------------------------------------------------ */

/* Lays out a file in s->buffer. */
static void make_store_file(struct kv_store *s, struct kv_store_key key, const char *part)
{
    const struct kv_store_part *p = &s->part;
    const uint64_t heads = n_heads(p), piece = piece_bytes(p);
    struct store_header h = {.key = key,
                             .n_layers = p->n_layers,
                             .head_begin = p->head_begin,
                             .head_end = p->head_end,
                             .n_halves = p->n_halves,
                             .half_bytes = piece / p->n_halves};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    char *at = s->buffer, *data = s->buffer + s->index_bytes;
    memcpy(at, &h, sizeof h);
    at += sizeof h;
    memcpy(at, s->layers, p->n_layers * sizeof *s->layers);
    at += p->n_layers * sizeof *s->layers;
    for (uint64_t l = 0; l < p->n_layers; l++) {
        for (uint64_t g = 0; g < heads; g++, data += piece) {
            for (uint64_t w = 0; w <= p->n_halves; w++)
                memcpy(data + w * p->half_bytes, part + part_place(p, l, g, w),
                       half_bytes_of(p, w));
            const uint64_t sum = XXH3_64bits(data, piece);
            memcpy(at, &sum, sizeof sum);
            at += sizeof sum;
        }
    }
    const uint64_t sum = XXH3_64bits(s->buffer, (size_t)(at - s->buffer));
    memcpy(at, &sum, sizeof sum);
}

static bool write_store_file(const char *path, const char *bytes, uint64_t n)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return false;
    while (n > 0) {
        const ssize_t done = write(fd, bytes, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) break;
        bytes += done;
        n -= (uint64_t)done;
    }
    return close(fd) == 0 && n == 0;
}

/* Counts the bytes of a file that is about to be written, and returns how many all writers have
 * written since the last sweep. Without the counter's file, as on a full disk, it returns those of
 * this process. NFS may lose a byte when two hosts append at once: a sweep then comes later. */
static uint64_t count_written(struct kv_store *s)
{
    static const char bytes[256];
    char path[PATH_BYTES];
    struct stat found = {0};
    uint64_t left = (s->file_bytes + WRITTEN_UNIT - 1) / WRITTEN_UNIT;
    s->unswept_bytes += s->file_bytes;
    snprintf(path, sizeof path, "%s/written", s->dir);
    const int fd = file_open_regular(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW);
    if (fd < 0) return s->unswept_bytes;
    while (left > 0) {
        const ssize_t done = write(fd, bytes, left < sizeof bytes ? left : sizeof bytes);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) break;
        left -= (uint64_t)done;
    }
    const uint64_t n = fstat(fd, &found) == 0 ? (uint64_t)found.st_size * WRITTEN_UNIT : 0;
    close(fd);
    return n > s->unswept_bytes ? n : s->unswept_bytes;
}

bool kv_store_put(struct kv_store *s, struct kv_store_key key, const void *part)
{
    char folder[PATH_BYTES], path[PATH_BYTES + 256], temporary[PATH_BYTES + 256];
    char name[KEY_DIGITS + 1];
    if (n_heads(&s->part) == 0 || s->part.n_layers == 0) return true;
    name_folder(s, folder_of(key), folder);
    name_key(key, name);
    snprintf(path, sizeof path, "%s/%s.%016" PRIx64 ".%u-%u", folder, name, s->part_hash,
             s->part.head_begin, s->part.head_end);
    if (access(path, F_OK) == 0) return true;
    make_store_file(s, key, part);
    struct stat self;
    const uint64_t here = stat("/proc/self", &self) == 0 ? (uint64_t)self.st_ino : 0;
    snprintf(temporary, sizeof temporary, "%s/tmp.%ld.%" PRIx64 ".%" PRIx64 ".%u", folder,
             (long)getpid(), here, s->n_written++, s->part.head_begin);
    const uint64_t n_unswept = count_written(s);
    const bool good =
        write_store_file(temporary, s->buffer, s->file_bytes) && rename(temporary, path) == 0;
    if (!good) unlink(temporary);
    if (n_unswept > s->most_bytes / 16) kv_store_sweep(s);
    return good;
}

/* --- reading ------------------------------------------------------------------------------ */

struct reading {
    struct kv_store *s;
    struct kv_store_key key;
    char *part;
    bool *has; /* [n_layers, heads] */
    uint64_t n_missing;
    bool lacks_memory; /* for a file's index */
};

static bool read_store_at(int fd, void *to, uint64_t n, uint64_t at)
{
    for (char *p = to; n > 0;) {
        const ssize_t done = pread(fd, p, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        p += done;
        at += (uint64_t)done;
        n -= (uint64_t)done;
    }
    return true;
}

/* Reads a file's index into *index, which the caller frees. False: it is damaged or does not fit
 * this store, or r->lacks_memory. */
static bool read_index(int fd, struct reading *r, struct store_header *h, char **index)
{
    const struct kv_store_part *p = &r->s->part;
    *index = NULL;
    if (!read_store_at(fd, h, sizeof *h, 0)) return false;
    if (memcmp(h->magic, MAGIC, sizeof MAGIC) != 0 || h->key.low != r->key.low ||
        h->key.high != r->key.high || h->n_halves != p->n_halves ||
        h->half_bytes != piece_bytes(p) / p->n_halves || h->n_layers > 4096 ||
        h->head_end < h->head_begin || h->head_end > 4096)
        return false;
    const uint64_t n = index_bytes_of(h), n_summed = n - sizeof(uint64_t);
    uint64_t sum;
    const struct status st = mem_alloc(index, n, 1, "prefix store");
    r->lacks_memory = status_failed(&st);
    if (r->lacks_memory || !read_store_at(fd, *index, n, 0)) return false;
    memcpy(&sum, *index + n_summed, sizeof sum);
    return XXH3_64bits(*index, n_summed) == sum;
}

/* Reads one head of one layer and puts it into its place. False: it is damaged. */
static bool read_head_piece(const struct reading *r, int fd, uint64_t at, uint64_t sum,
                            uint64_t place)
{
    const struct kv_store_part *p = &r->s->part;
    const uint64_t piece = piece_bytes(p), heads = n_heads(p);
    char *bytes = r->s->buffer;
    if (!read_store_at(fd, bytes, piece, at) || XXH3_64bits(bytes, piece) != sum) return false;
    for (uint64_t w = 0; w <= p->n_halves; w++)
        memcpy(r->part + part_place(p, place / heads, place % heads, w), bytes + w * p->half_bytes,
               half_bytes_of(p, w));
    return true;
}

/* Reads from a file the heads still missing in `r`. False: the file is damaged. */
static bool take_head_pieces(struct reading *r, int fd, const struct store_header *h,
                             const char *index)
{
    const struct kv_store_part *p = &r->s->part;
    const uint64_t heads = n_heads(p), theirs = h->head_end - h->head_begin;
    const uint64_t piece = piece_bytes(p);
    const char *layers = index + sizeof *h, *sums = layers + h->n_layers * sizeof(uint32_t);
    for (uint64_t place = 0; place < p->n_layers * heads; place++) {
        const uint32_t layer = p->layers[place / heads];
        const uint64_t head = p->head_begin + place % heads;
        if (r->has[place] || head < h->head_begin || head >= h->head_end) continue;
        for (uint64_t l = 0; l < h->n_layers; l++) {
            uint32_t there;
            uint64_t sum;
            memcpy(&there, layers + l * sizeof there, sizeof there);
            if (there != layer) continue;
            const uint64_t i = l * theirs + head - h->head_begin;
            memcpy(&sum, sums + i * sizeof sum, sizeof sum);
            if (!read_head_piece(r, fd, index_bytes_of(h) + i * piece, sum, place)) return false;
            r->has[place] = true;
            r->n_missing--;
            break;
        }
    }
    return true;
}

static bool take_store_file(void *user, const char *path)
{
    struct reading *r = user;
    const int fd = file_open_regular(path, O_RDONLY | O_NOFOLLOW);
    if (fd < 0) {
        /* a FIFO, a socket, a device or a symlink; unlink removes no folder */
        if (errno == EINVAL || errno == ELOOP) unlink(path);
        return true; /* also if another job has removed it: other files may have the heads */
    }
    struct store_header h;
    char *index = NULL;
    const bool good = read_index(fd, r, &h, &index) && take_head_pieces(r, fd, &h, index);
    if (good)
        futimens(fd, NULL); /* marks it as used now */
    else if (!r->lacks_memory)
        unlink(path);
    mem_free(&index);
    close(fd);
    return r->n_missing > 0 && !r->lacks_memory;
}

bool kv_store_get(struct kv_store *s, struct kv_store_key key, void *part)
{
    const uint64_t n = (uint64_t)s->part.n_layers * n_heads(&s->part);
    struct reading r = {.s = s, .key = key, .part = part, .n_missing = n};
    const struct status st = mem_alloc(&r.has, n + 1, sizeof *r.has, "prefix store");
    if (status_failed(&st)) return false;
    if (n > 0) for_files(s, key, take_store_file, &r);
    mem_free(&r.has);
    return r.n_missing == 0;
}

/* --- the bound ---------------------------------------------------------------------------- */

struct stored_file {
    char name[92];
    unsigned folder;
    uint64_t used_ns, n_bytes;
};

struct file_list {
    struct stored_file *files; /* [n], owned */
    size_t n, capacity;
    uint64_t n_bytes; /* of all files */
};

static int compare_used(const void *a, const void *b)
{
    const uint64_t x = ((const struct stored_file *)a)->used_ns;
    const uint64_t y = ((const struct stored_file *)b)->used_ns;
    return (x > y) - (x < y);
}

/* Appends a file of a folder. Skips folders, files that have gone, and names that no store makes
 * (hidden or too long). */
static struct status list_file(struct file_list *l, const char *path, const char *name,
                               unsigned folder)
{
    struct stat found;
    const size_t n = strlen(name);
    struct stored_file f = {.folder = folder};
    if (name[0] == '.' || n >= sizeof f.name || lstat(path, &found) != 0) return status_ok();
    if (S_ISDIR(found.st_mode)) return status_ok();
    memcpy(f.name, name, n);
    f.used_ns = (uint64_t)found.st_mtim.tv_sec * 1000000000u + (uint64_t)found.st_mtim.tv_nsec;
    f.n_bytes = (uint64_t)found.st_size;
    if (l->n == l->capacity) {
        const size_t grown = 2 * l->capacity + 64;
        TRY(mem_grow(&l->files, l->n, grown, sizeof *l->files, "prefix store"));
        l->capacity = grown;
    }
    l->files[l->n++] = f;
    l->n_bytes += f.n_bytes;
    return status_ok();
}

/* Appends the files of a folder. Errors: STATUS_MEMORY, STATUS_IO. */
static struct status list_folder(const struct kv_store *s, unsigned i, struct file_list *l)
{
    char folder[PATH_BYTES], path[PATH_BYTES + 512];
    struct status st = status_ok();
    name_folder(s, i, folder);
    DIR *d = opendir(folder);
    if (d == NULL && errno == ENOENT) return st;
    if (d == NULL) return status_make(STATUS_IO, "%s: %s", folder, strerror(errno));
    while (!status_failed(&st)) {
        errno = 0;
        const struct dirent *entry = readdir(d);
        if (entry == NULL && errno != 0)
            st = status_make(STATUS_IO, "%s: %s", folder, strerror(errno));
        if (entry == NULL) break;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        st = list_file(l, path, entry->d_name, i);
    }
    closedir(d);
    return st;
}

/* Removes the least recently used files until those left have at most `most` bytes. */
static void remove_oldest(const struct kv_store *s, struct file_list *l, uint64_t most)
{
    if (l->n_bytes > most) qsort(l->files, l->n, sizeof *l->files, compare_used);
    for (size_t i = 0; i < l->n && l->n_bytes > most; i++) {
        const struct stored_file *f = &l->files[i];
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/%02x/%s", s->dir, f->folder, f->name);
        if (unlink(path) == 0 || errno == ENOENT) l->n_bytes -= f->n_bytes;
    }
}

void kv_store_sweep(struct kv_store *s)
{
    struct file_list l = {0};
    char path[PATH_BYTES];
    struct status st = status_ok();
    s->unswept_bytes = 0;
    snprintf(path, sizeof path, "%s/written", s->dir);
    /* empties the counter before listing: the list may miss files written from now on, so the next
     * sweep must count them */
    const int fd = file_open_regular(path, O_WRONLY | O_TRUNC | O_NOFOLLOW);
    if (fd >= 0) close(fd);
    for (unsigned i = 0; i < N_FOLDERS && !status_failed(&st); i++) st = list_folder(s, i, &l);
    /* leaves room for the files written until the next sweep */
    if (!status_failed(&st)) remove_oldest(s, &l, s->most_bytes - s->most_bytes / 8);
    mem_free(&l.files);
}
