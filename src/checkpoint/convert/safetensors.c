/* Reads safetensors: opens every shard once, parses its header, checks that the tensors cover its
 * data without overlap or gap, then reads ranges. */
#include "checkpoint/convert/safetensors.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHARDS_MAX = 512, TENSORS_MAX = 1 << 22, NAME_MAX_BYTES = 1024 };

struct shard {
    char *path; /* owned */
    int fd;     /* owned, -1: not open */
    uint64_t n_bytes;
};

struct entry {
    struct safetensors_tensor tensor;
    char *name; /* owned */
};

struct safetensors {
    struct shard *shards; /* owned [n_shards] */
    size_t n_shards;
    struct entry *entries; /* owned [n_entries], sorted by name once open */
    size_t n_entries, n_entries_capacity;
};

/* ---- files ---- */

static struct status shard_open(struct shard *s)
{
    struct stat info;
    s->fd = open(s->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a FIFO must not block */
    if (s->fd < 0) return status_make(STATUS_INPUT, "%s: %s", s->path, strerror(errno));
    if (fstat(s->fd, &info) != 0) {
        return status_make(STATUS_INPUT, "%s: %s", s->path, strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        return status_make(STATUS_INPUT, "%s: expected a regular file", s->path);
    }
    s->n_bytes = (uint64_t)info.st_size;
    return status_ok();
}

static struct status shard_read(const struct shard *s, uint64_t offset, size_t n, void *out)
{
    for (size_t done = 0; done < n;) {
        const size_t part = n - done < (1u << 30) ? n - done : 1u << 30;
        const ssize_t got = pread(s->fd, (char *)out + done, part, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            return status_make(STATUS_INPUT, "%s: byte %llu: %s", s->path,
                               (unsigned long long)(offset + done),
                               got < 0 ? strerror(errno) : "the file ends");
        }
        done += (size_t)got;
    }
    return status_ok();
}

static struct status shard_add(struct safetensors *s, const char *folder, const char *name)
{
    if (s->n_shards == SHARDS_MAX) {
        return status_make(STATUS_INPUT, "%s: more than %d shards", folder, SHARDS_MAX);
    }
    struct shard *shard = &s->shards[s->n_shards];
    *shard = (struct shard){.fd = -1};
    if (name == NULL) {
        TRY(mem_strndup(&shard->path, folder, strlen(folder)));
    } else {
        TRY(file_join(folder, name, &shard->path));
    }
    s->n_shards++;
    return shard_open(shard);
}

/* ---- one header ---- */

static struct status safetensors_bad(const struct shard *s, const char *tensor, const char *what)
{
    return status_make(STATUS_INPUT, "%s: tensor '%.200s': %s", s->path, tensor, what);
}

static bool dtype_of(const char *name, enum dtype *out)
{
    static const char *const names[DTYPE_STORED_COUNT] = {
        [DTYPE_F32] = "F32",        [DTYPE_F16] = "F16",         [DTYPE_BF16] = "BF16",
        [DTYPE_I8] = "I8",          [DTYPE_U8] = "U8",           [DTYPE_I32] = "I32",
        [DTYPE_I64] = "I64",        [DTYPE_F8_E4M3] = "F8_E4M3", [DTYPE_F8_E5M2] = "F8_E5M2",
        [DTYPE_F8_E8M0] = "F8_E8M0"};
    for (int i = 0; i < DTYPE_STORED_COUNT; i++) {
        if (names[i] != NULL && strcmp(name, names[i]) == 0) {
            *out = (enum dtype)i;
            return true;
        }
    }
    return false;
}

static struct status shape_parse(const struct shard *s, const char *name,
                                 const struct js_node *shape, struct safetensors_tensor *t)
{
    if (js_type(shape) != JS_ARRAY || js_count(shape) > SAFETENSORS_DIMS_MAX) {
        return safetensors_bad(s, name, "shape: expected a list of at most 8 sizes");
    }
    t->n_dims = (uint32_t)js_count(shape);
    t->n_bytes = dtype_bytes(t->dtype);
    for (uint32_t d = 0; d < t->n_dims; d++) {
        int64_t n;
        if (!js_int(js_at(shape, d), &n) || n < 0) {
            return safetensors_bad(s, name, "shape: expected sizes of 0 or more");
        }
        t->dims[d] = (uint64_t)n;
        if (n > 0 && t->n_bytes > UINT64_MAX / t->dims[d]) {
            return safetensors_bad(s, name, "shape: its product overflows");
        }
        t->n_bytes *= t->dims[d];
    }
    return status_ok();
}

static struct status tensor_parse(const struct shard *s, uint64_t data, const char *name,
                                  const struct js_node *node, struct safetensors_tensor *t)
{
    const char *dtype = js_string(js_get(node, "dtype"), NULL);
    const struct js_node *offsets = js_get(node, "data_offsets");
    int64_t first, end;
    if (name[0] == '\0' || strlen(name) > NAME_MAX_BYTES)
        return safetensors_bad(s, name, "bad name");
    if (dtype == NULL || !dtype_of(dtype, &t->dtype)) {
        return status_make(
            STATUS_INPUT,
            "%s: tensor '%s': dtype: expected F32, F16, BF16, or F8_E4M3, F8_E5M2, F8_E8M0, I8, "
            "U8, I32, I64 of quantized weights, found %.40s",
            s->path, name, dtype != NULL ? dtype : "none");
    }
    TRY(shape_parse(s, name, js_get(node, "shape"), t));
    if (js_count(offsets) != 2 || !js_int(js_at(offsets, 0), &first) ||
        !js_int(js_at(offsets, 1), &end)) {
        return safetensors_bad(s, name, "data_offsets: expected two integers");
    }
    const uint64_t room = s->n_bytes - data;
    if (first < 0 || end < first || (uint64_t)end > room || (uint64_t)(end - first) != t->n_bytes) {
        return status_make(STATUS_INPUT,
                           "%s: tensor '%s': data_offsets [%lld, %lld): expected %llu bytes inside "
                           "the file's %llu bytes of data",
                           s->path, name, (long long)first, (long long)end,
                           (unsigned long long)t->n_bytes, (unsigned long long)room);
    }
    t->offset = data + (uint64_t)first;
    return status_ok();
}

static struct status entry_add(struct safetensors *s, const char *name,
                               const struct safetensors_tensor *t)
{
    if (s->n_entries == TENSORS_MAX) return status_make(STATUS_INPUT, "more than 2^22 tensors");
    if (s->n_entries == s->n_entries_capacity) {
        const size_t n_new = s->n_entries_capacity == 0 ? 256 : 2 * s->n_entries_capacity;
        TRY(mem_grow(&s->entries, s->n_entries_capacity, n_new, sizeof s->entries[0],
                     "the list of tensors"));
        s->n_entries_capacity = n_new;
    }
    struct entry *entry = &s->entries[s->n_entries];
    *entry = (struct entry){.tensor = *t};
    TRY(mem_strndup(&entry->name, name, strlen(name)));
    s->n_entries++;
    return status_ok();
}

static int offset_compare(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->tensor.offset != y->tensor.offset) return x->tensor.offset < y->tensor.offset ? -1 : 1;
    return x->tensor.n_bytes < y->tensor.n_bytes ? -1 : x->tensor.n_bytes > y->tensor.n_bytes;
}

/* Checks that the tensors cover the data without overlap or gap, as the format requires. */
static struct status coverage_check(const struct shard *shard, uint64_t data, struct entry *entries,
                                    size_t n)
{
    uint64_t at = data;
    if (n > 0) qsort(entries, n, sizeof entries[0], offset_compare);
    for (size_t i = 0; i < n; i++) {
        const struct safetensors_tensor *t = &entries[i].tensor;
        if (t->offset != at) {
            return status_make(STATUS_INPUT, "%s: tensor '%s' at byte %llu: expected %llu (%s)",
                               shard->path, entries[i].name, (unsigned long long)t->offset,
                               (unsigned long long)at,
                               t->offset < at ? "it overlaps another one" : "a hole before it");
        }
        at += t->n_bytes;
    }
    if (at == shard->n_bytes) return status_ok();
    return status_make(STATUS_INPUT, "%s: its tensors end at byte %llu, the file at %llu",
                       shard->path, (unsigned long long)at, (unsigned long long)shard->n_bytes);
}

static struct status members_parse(struct safetensors *s, size_t index, uint64_t data,
                                   const struct js_node *root)
{
    const struct shard *shard = &s->shards[index];
    const size_t first = s->n_entries;
    const void *it = NULL;
    const char *name;
    const struct js_node *node;
    if (js_type(root) != JS_OBJECT) {
        return status_make(STATUS_INPUT, "%s: its header: expected an object", shard->path);
    }
    while (js_next(root, &it, &name, &node)) {
        if (strcmp(name, "__metadata__") == 0) continue;
        struct safetensors_tensor t = {.shard = (uint32_t)index};
        TRY(tensor_parse(shard, data, name, node, &t));
        TRY(entry_add(s, name, &t));
    }
    return coverage_check(shard, data, s->entries + first, s->n_entries - first);
}

static struct status header_read(struct safetensors *s, size_t index)
{
    const struct shard *shard = &s->shards[index];
    unsigned char prefix[8];
    uint64_t n = 0;
    if (shard->n_bytes < sizeof prefix) {
        return status_make(STATUS_INPUT, "%s: %llu bytes, too short for a safetensors header",
                           shard->path, (unsigned long long)shard->n_bytes);
    }
    TRY(shard_read(shard, 0, sizeof prefix, prefix));
    if (memcmp(prefix, "version ", sizeof prefix) == 0)
        return status_make(STATUS_INPUT,
                           "%s: is a text that git keeps in place of a large file; get the file "
                           "with: git lfs pull",
                           shard->path);
    for (int i = 7; i >= 0; i--) n = n << 8 | prefix[i];
    if (n > SAFETENSORS_HEADER_MAX || n > shard->n_bytes - sizeof prefix) {
        return status_make(STATUS_INPUT,
                           "%s: a header of %llu bytes, expected at most %d and inside the file's "
                           "%llu bytes",
                           shard->path, (unsigned long long)n, SAFETENSORS_HEADER_MAX,
                           (unsigned long long)shard->n_bytes);
    }
    char *text = NULL;
    struct js_doc *doc = NULL;
    TRY(mem_alloc(&text, (size_t)n, 1, "a safetensors header"));
    struct status st = shard_read(shard, sizeof prefix, (size_t)n, text);
    if (!status_failed(&st)) st = js_parse(text, (size_t)n, shard->path, &doc);
    mem_free(&text);
    if (!status_failed(&st)) {
        st = members_parse(s, index, sizeof prefix + n, js_root(doc));
    }
    js_destroy(&doc);
    return st;
}

/* ---- the index of shards ---- */

static bool shard_name_good(const char *name, size_t n)
{
    return name != NULL && n > 0 && n < 256 && strlen(name) == n && strchr(name, '/') == NULL &&
           name[0] != '.';
}

static size_t shard_find(const struct safetensors *s, size_t folder_bytes, const char *name)
{
    for (size_t i = 0; i < s->n_shards; i++) {
        if (strcmp(s->shards[i].path + folder_bytes + 1, name) == 0) return i;
    }
    return s->n_shards;
}

static struct status index_open(struct safetensors *s, const char *folder, const char *index,
                                const struct js_node *map)
{
    const void *it = NULL;
    const char *tensor;
    const struct js_node *value;
    if (js_type(map) != JS_OBJECT || js_count(map) == 0) {
        return status_make(STATUS_INPUT, "%s: weight_map: expected an object with tensors", index);
    }
    while (js_next(map, &it, &tensor, &value)) {
        size_t n = 0;
        const char *name = js_string(value, &n);
        if (!shard_name_good(name, n)) {
            return status_make(STATUS_INPUT,
                               "%s: tensor '%.200s': shard '%.80s': expected a plain file name",
                               index, tensor, name != NULL ? name : "");
        }
        if (shard_find(s, strlen(folder), name) == s->n_shards) TRY(shard_add(s, folder, name));
    }
    return status_ok();
}

/* Checks that every tensor of the index is in the shard named there, and that no shard has a tensor
 * that the index does not name. */
static struct status index_check(const struct safetensors *s, size_t folder_bytes,
                                 const char *index, const struct js_node *map)
{
    const void *it = NULL;
    const char *tensor;
    const struct js_node *value;
    while (js_next(map, &it, &tensor, &value)) {
        const char *shard = js_string(value, NULL);
        const struct safetensors_tensor *t = safetensors_find(s, tensor);
        if (t == NULL || strcmp(s->shards[t->shard].path + folder_bytes + 1, shard) != 0) {
            return status_make(STATUS_INPUT, "%s: tensor '%.200s' is not in %s", index, tensor,
                               shard);
        }
    }
    for (size_t i = 0; i < s->n_entries; i++) {
        if (js_get(map, s->entries[i].name) == NULL) {
            return status_make(STATUS_INPUT, "%s: tensor '%s' of %s is not in the index", index,
                               s->entries[i].name, s->shards[s->entries[i].tensor.shard].path);
        }
    }
    return status_ok();
}

static int name_compare(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static struct status headers_read(struct safetensors *s)
{
    for (size_t i = 0; i < s->n_shards; i++) TRY(header_read(s, i));
    if (s->n_entries > 0) qsort(s->entries, s->n_entries, sizeof s->entries[0], name_compare);
    for (size_t i = 0; i < s->n_entries; i++) {
        s->entries[i].tensor.name = s->entries[i].name;
        if (i > 0 && strcmp(s->entries[i - 1].name, s->entries[i].name) == 0) {
            return safetensors_bad(&s->shards[s->entries[i].tensor.shard], s->entries[i].name,
                                   "stands in two shards");
        }
    }
    return status_ok();
}

static struct status sharded_open(struct safetensors *s, const char *folder, const char *index)
{
    char *text = NULL;
    size_t n;
    struct js_doc *doc = NULL;
    TRY(file_read(index, SAFETENSORS_INDEX_MAX, &text, &n));
    struct status st = js_parse(text, n, index, &doc);
    mem_free(&text);
    if (status_failed(&st)) return st;
    const struct js_node *map = js_get(js_root(doc), "weight_map");
    st = index_open(s, folder, index, map);
    if (!status_failed(&st)) st = headers_read(s);
    if (!status_failed(&st)) st = index_check(s, strlen(folder), index, map);
    js_destroy(&doc);
    return st;
}

static struct status folder_open(struct safetensors *s, const char *folder)
{
    char *single = NULL, *index = NULL;
    struct status st = file_join(folder, "model.safetensors", &single);
    if (!status_failed(&st)) st = file_join(folder, "model.safetensors.index.json", &index);
    if (!status_failed(&st)) {
        if (access(index, F_OK) == 0) {
            st = sharded_open(s, folder, index);
        } else if (access(single, F_OK) == 0) {
            st = shard_add(s, single, NULL);
            if (!status_failed(&st)) st = headers_read(s);
        } else {
            st = status_make(STATUS_INPUT,
                             "%s: expected model.safetensors or model.safetensors.index.json in it",
                             folder);
        }
    }
    mem_free(&index);
    mem_free(&single);
    return st;
}

struct status safetensors_open(const char *path, struct safetensors **out)
{
    struct safetensors *s = NULL;
    struct stat info;
    *out = NULL;
    if (stat(path, &info) != 0) return status_make(STATUS_INPUT, "%s: %s", path, strerror(errno));
    TRY(mem_alloc(&s, 1, sizeof *s, "a safetensors reader"));
    struct status st = mem_alloc(&s->shards, SHARDS_MAX, sizeof s->shards[0], "shards");
    if (!status_failed(&st)) {
        if (S_ISDIR(info.st_mode)) {
            st = folder_open(s, path);
        } else {
            st = shard_add(s, path, NULL);
            if (!status_failed(&st)) st = headers_read(s);
        }
    }
    if (status_failed(&st)) safetensors_close(&s);
    *out = s;
    return st;
}

void safetensors_close(struct safetensors **s_)
{
    struct safetensors *s = *s_;
    if (s == NULL) return;
    for (size_t i = 0; i < s->n_shards; i++) {
        if (s->shards[i].fd >= 0) close(s->shards[i].fd);
        mem_free(&s->shards[i].path);
    }
    for (size_t i = 0; i < s->n_entries; i++) mem_free(&s->entries[i].name);
    mem_free(&s->entries);
    mem_free(&s->shards);
    mem_free(s_);
}

size_t safetensors_count(const struct safetensors *s)
{
    return s->n_entries;
}

const struct safetensors_tensor *safetensors_at(const struct safetensors *s, size_t i)
{
    return &s->entries[i].tensor;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *s, const char *name)
{
    size_t low = 0, high = s->n_entries;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(name, s->entries[middle].name);
        if (order == 0) return &s->entries[middle].tensor;
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

const char *safetensors_path(const struct safetensors *s, const struct safetensors_tensor *t)
{
    return s->shards[t->shard].path;
}

struct status safetensors_read(const struct safetensors *s, const struct safetensors_tensor *t,
                               uint64_t first, size_t n, void *out)
{
    if (first > t->n_bytes || n > t->n_bytes - first) {
        return status_make(STATUS_BUG, "tensor '%s': bytes outside it were asked for", t->name);
    }
    return shard_read(&s->shards[t->shard], t->offset + first, n, out);
}
