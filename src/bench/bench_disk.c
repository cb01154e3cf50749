/* shoal bench --disk: how fast a host's disk serves ranks that stream experts from it. All ranks
 * read at the same time (bench_disk.h); this file adds up their rates and writes the table, the
 * JSON and the node's file. */
#include "bench/bench_disk.h"

#include "base/file_replace.h"
#include "base/log.h"
#include "base/mem.h"
#include "bench/bench.h"
#include "cost/node_file.h"
#include "job/job_paths.h"
#include "weights/expert_stream.h"

#include <stdio.h>
#include <string.h>

enum { N_BLOCKS = 3, N_DEPTHS = 3, N_ROWS = N_BLOCKS * N_DEPTHS };
static const size_t block_sizes[N_BLOCKS] = {1 << 20, 4 << 20, BENCH_DISK_BLOCK};
static const uint32_t depths[N_DEPTHS] = {1, 4, EXPERT_STREAM_DEPTH};

struct disk_row {
    struct bench_disk_read how;
    double host_bytes_s;             /* of the slowest host */
    double cpu_s_per_gb, sums_share; /* CPU time for 1e9 bytes; its part for checksums */
};

struct disk_report {
    struct comm *comm;
    struct topo *topo;
    struct bench_split split;
    const char *path;
    struct bench_disk_file file;
    enum bench_disk_way way; /* the worst of any rank */
    uint64_t host_bytes;     /* that a host's ranks read */
    uint64_t rank_bytes;     /* that each rank reads, at least */
    char *memory;            /* [memory_bytes] mapped, for the blocks in flight */
    struct disk_row rows[N_ROWS];
    size_t n_rows;
    struct node node; /* rank 0: read from the file of --save */
};

static size_t memory_bytes(const struct disk_report *r)
{
    const uint64_t most = (uint64_t)EXPERT_STREAM_DEPTH * BENCH_DISK_BLOCK;
    return (size_t)(r->rank_bytes < most ? r->rank_bytes : most);
}

/* --- measuring ---------------------------------------------------------------------------- */

/* **Collective (world)**. Joins the speeds of all ranks to a row. */
static void join_speeds(struct comm *c, const struct bench_disk_speed *mine, struct disk_row *row)
{
    int64_t rate = (int64_t)((double)mine->n_bytes / mine->seconds);
    int64_t all[3] = {(int64_t)mine->n_bytes, (int64_t)(mine->cpu_s * 1e9),
                      (int64_t)(mine->sum_cpu_s * 1e9)};
    comm_sum_i64(c, COMM_HOST, &rate, 1);
    uint64_t host_rate = (uint64_t)rate;
    comm_min_u64(c, COMM_WORLD, &host_rate, 1);
    comm_sum_i64(c, COMM_WORLD, all, 3);
    row->host_bytes_s = (double)host_rate;
    row->cpu_s_per_gb = (double)all[1] / (double)all[0];
    row->sums_share = all[1] > 0 ? (double)all[2] / (double)all[1] : 0;
}

static struct status measure_row(struct disk_report *r, size_t block_bytes, uint32_t depth)
{
    struct disk_row *row = &r->rows[r->n_rows];
    struct bench_disk_speed speed = {0};
    row->how = (struct bench_disk_read){block_bytes, depth};
    comm_barrier(r->comm, COMM_WORLD);
    TRY(comm_agree(r->comm, bench_disk_measure(&r->file, &row->how, r->memory, &speed)));
    join_speeds(r->comm, &speed, row);
    r->n_rows++;
    return status_ok();
}

static struct status open_all(struct disk_report *r, uint64_t all_bytes)
{
    const uint32_t rank = (uint32_t)comm_rank(r->comm, COMM_HOST);
    const uint32_t n_ranks = (uint32_t)comm_size(r->comm, COMM_HOST);
    TRY(comm_agree(r->comm, bench_disk_open(r->path, all_bytes, rank, n_ranks, &r->file)));
    r->rank_bytes = r->file.n_bytes;
    comm_min_u64(r->comm, COMM_WORLD, &r->rank_bytes, 1);
    TRY(comm_agree(r->comm, mem_map(&r->memory, memory_bytes(r), "memory for reads")));
    memset(r->memory, 1, memory_bytes(r)); /* first touches cost more than reads */
    uint64_t way = r->file.way;
    comm_max_u64(r->comm, COMM_WORLD, &way, 1);
    r->way = (enum bench_disk_way)way;
    r->file.way = r->way; /* all ranks read in the same way */
    r->host_bytes = n_ranks * r->file.n_bytes;
    return status_ok();
}

static struct status measure_disk(struct disk_report *r, uint64_t all_bytes)
{
    TRY(comm_gather_topo(r->comm, &r->topo));
    TRY(comm_agree(r->comm, bench_split_init(&r->split, r->comm)));
    TRY(open_all(r, all_bytes));
    const int n_depths = r->way == BENCH_DISK_DIRECT ? N_DEPTHS : 1;
    for (int b = 0; b < N_BLOCKS; b++) {
        for (int d = 0; d < n_depths; d++) {
            /* blocks in flight are different ones, because a drive has a cache */
            if (block_sizes[b] * depths[d] <= r->rank_bytes)
                TRY(measure_row(r, block_sizes[b], depths[d]));
        }
    }
    return status_ok();
}

/* Returns the highest rate of the rows with the most reads in flight; streamed experts have
 * EXPERT_STREAM_DEPTH of them. */
static double best_rate_of(const struct disk_report *r)
{
    uint32_t deepest = 0;
    double best = 0;
    for (size_t i = 0; i < r->n_rows; i++)
        if (r->rows[i].how.depth > deepest) deepest = r->rows[i].how.depth;
    for (size_t i = 0; i < r->n_rows; i++) {
        const struct disk_row *row = &r->rows[i];
        if (row->how.depth == deepest && row->host_bytes_s > best) best = row->host_bytes_s;
    }
    return best;
}

/* --- the results -------------------------------------------------------------------------- */

static const char *const way_names[] = {
    [BENCH_DISK_DIRECT] = "direct", [BENCH_DISK_CACHED] = "cached", [BENCH_DISK_MEMORY] = "memory"};

static void print_disk(const struct disk_report *r)
{
    static const char *const ways[] = {
        [BENCH_DISK_DIRECT] = "past the file cache",
        [BENCH_DISK_CACHED] = "through the file cache, which is emptied behind each read",
        [BENCH_DISK_MEMORY] = "from memory"};
    printf("%s: %.3f GB a host%s, read %s, with checksums; %u hosts, %d ranks of a host\n\n",
           r->path, (double)r->host_bytes / 1e9, r->file.is_own ? " of its own" : "", ways[r->way],
           r->topo->n_nodes, comm_size(r->comm, COMM_HOST));
    printf("%10s %10s %10s %10s %16s\n", "block MiB", "in flight", "GB/s", "CPU s/GB",
           "of it checksums");
    for (size_t i = 0; i < r->n_rows; i++) {
        const struct disk_row *row = &r->rows[i];
        printf("%10zu %10u %10.3f %10.3f %14.0f %%\n", row->how.block_bytes >> 20, row->how.depth,
               row->host_bytes_s / 1e9, row->cpu_s_per_gb, 100 * row->sums_share);
    }
    const double gbs = best_rate_of(r) / 1e9;
    if (r->way == BENCH_DISK_MEMORY)
        printf("\n%s is in memory: %.3f GB/s is the rate of memory, not of a disk\n", r->path, gbs);
    else
        printf("\na host gives %.3f GB/s to streamed experts: shoal plan --disk %.3f\n", gbs, gbs);
}

static struct status write_disk_json(const struct disk_report *r, const char *path)
{
    struct strbuf s;
    strbuf_init(&s);
    strbuf_printf(&s, "{\"shoal\":\"%s\",\"disk\":", SHOAL_VERSION);
    strbuf_json_string(&s, r->path, strlen(r->path));
    strbuf_printf(&s,
                  ",\"way\":\"%s\",\"hosts\":%u,\"ranks_of_host\":%d,\"host_bytes\":%llu,"
                  "\"best_gbs\":%.6f,\"rows\":[",
                  way_names[r->way], r->topo->n_nodes, comm_size(r->comm, COMM_HOST),
                  (unsigned long long)r->host_bytes, best_rate_of(r) / 1e9);
    for (size_t i = 0; i < r->n_rows; i++) {
        const struct disk_row *row = &r->rows[i];
        strbuf_printf(&s,
                      "%s{\"block_bytes\":%zu,\"in_flight\":%u,\"gbs\":%.6f,\"cpu_s_per_gb\":%.6f,"
                      "\"checksums\":%.4f}",
                      i > 0 ? "," : "", row->how.block_bytes, row->how.depth,
                      row->host_bytes_s / 1e9, row->cpu_s_per_gb, row->sums_share);
    }
    strbuf_puts(&s, "]}\n");
    const struct status st = bench_write_json("json", path, &s);
    strbuf_fini(&s);
    return st;
}

static struct status disk_report_write(const struct disk_report *r, const char *json)
{
    if (comm_rank(r->comm, COMM_WORLD) != 0) return status_ok();
    if (json == NULL || strcmp(json, "-") != 0) print_disk(r);
    return json != NULL ? write_disk_json(r, json) : status_ok();
}

/* Writes the rate into the node's file, which keeps all else. */
static struct status save_disk(struct disk_report *r, const char *path)
{
    struct file_replace f;
    struct strbuf text;
    if (comm_rank(r->comm, COMM_WORLD) != 0) return status_ok();
    if (r->way == BENCH_DISK_MEMORY)
        return status_make(STATUS_USAGE,
                           "--save %s: nothing was written, because %s is in memory; expected a "
                           "folder or a file on a disk",
                           path, r->path);
    r->node.disk_bytes_s = best_rate_of(r);
    strbuf_init(&text);
    struct status st = node_write(&r->node, &text);
    if (!status_failed(&st)) st = file_replace_begin(&f, path);
    if (!status_failed(&st)) {
        (void)fwrite(text.data, 1, text.n, f.file);
        st = file_replace_end(&f, st);
    }
    strbuf_fini(&text);
    return st;
}

/* Checks, before anything is measured, that the files of --json and --save can be written. */
static struct status check_written(struct disk_report *r, const struct bench_flags *f)
{
    if (comm_rank(r->comm, COMM_WORLD) != 0) return status_ok();
    TRY(bench_check_json(r->comm, "json", f->json));
    if (f->save == NULL) return status_ok();
    TRY(job_paths_check_written("save", f->save));
    return status_wrap(node_read(f->save, &r->node),
                       "--save with --disk writes into a file of `shoal bench --machine --save`");
}

static struct status run_disk(struct disk_report *r, const struct bench_flags *f)
{
    TRY(comm_agree(r->comm, check_written(r, f)));
    TRY(measure_disk(r, f->disk_bytes));
    TRY(comm_agree(r->comm, disk_report_write(r, f->json)));
    return f->save != NULL ? comm_agree(r->comm, save_disk(r, f->save)) : status_ok();
}

int bench_disk_run(const struct bench_options *o, int *argc, char ***argv)
{
    struct comm *comm = NULL;
    struct disk_report *r = NULL;
    struct status st = comm_start(argc, argv, &comm);
    if (!status_failed(&st)) {
        st = comm_agree(comm, mem_alloc(&r, 1, sizeof *r, "report"));
        log_init(comm_rank(comm, COMM_WORLD), LOG_INFO, false);
    }
    if (!status_failed(&st)) {
        r->comm = comm;
        r->path = o->flags.disk;
        r->file.fd = -1;
        st = run_disk(r, &o->flags);
    }
    if (status_failed(&st) && (comm == NULL || comm_rank(comm, COMM_WORLD) == 0))
        fprintf(stderr, "shoal bench: %s\n", st.text);
    if (r != NULL) {
        bench_disk_close(&r->file);
        if (r->memory != NULL) mem_unmap(&r->memory, memory_bytes(r));
        bench_split_fini(&r->split);
        topo_destroy(&r->topo);
    }
    mem_free(&r);
    comm_stop(&comm);
    return status_exit(st.code);
}
