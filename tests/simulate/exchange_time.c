/* Simulated time of one MoE layer of DeepSeek-V3 on hosts of one rank: the messages of the exchange
 * between hosts (comm_mail, with blocks of the sizes that exchange_hosts.c sends), or of the older
 * one (a row of floats for each choice, by one all-to-all), around compute times that a file gives.
 * Computes nothing and sends no real rows. Runs in a simulator of MPI; scaling.py calls it.
 *
 * usage: exchange_time TIMES.json PARTS ROWS LAYERS new | old
 * TIMES.json is bench_moe's output, of one thread; a host is PARTS times as fast. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "parallel/comm/comm_mail.h"
#include "parallel/wire/exchange_memory.h"
#include "parallel/wire/result_block.h"
#include "parallel/wire/wire_bytes.h"
#include "parallel/wire/wire_ints.h"

#include <smpi/smpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { D = 7168, E = 256, K = 8, GROUPS = 8, CHOSEN = 4, CODES = 32, HOSTS_MAX = 256 };
enum { TIMES = 10, FILE_BYTES = 1 << 20, LINE = 64 };
static const double link_bytes_s = 12.5e9; /* of platforms.py */

struct run {
    struct comm *comm;
    struct comm_mail *mail;
    const struct layout *layout;
    uint32_t n_hosts, host, n_rows, n_layers;
    double expert_s[TIMES]; /* of 1, 2, 4, ... rows */
    double parts;
    uint32_t to[HOSTS_MAX][HOSTS_MAX];      /* [from][to] rows that a host sends to another */
    uint32_t choices[HOSTS_MAX][HOSTS_MAX]; /* [from][to] choices of experts there */
    uint32_t rows_of[E];                    /* of each expert, from all hosts */
    double compute_s;                       /* of this host, all layers so far */
};

static void must(struct status st)
{
    if (!status_failed(&st)) return;
    fprintf(stderr, "exchange_time: %s\n", st.text);
    exit(1);
}

/* --- compute ---------------------------------------------------------------------------------- */

static void read_times(const char *path, struct run *r)
{
    char *text = NULL, key[16];
    size_t n;
    struct js_doc *doc = NULL;
    must(file_read(path, FILE_BYTES, &text, &n));
    must(js_parse(text, n, path, &doc));
    for (int i = 0; i < TIMES; i++) {
        snprintf(key, sizeof key, "%d", 1 << i);
        if (!js_number(js_get(js_get(js_root(doc), "expert_s"), key), &r->expert_s[i]))
            must(status_make(STATUS_INPUT, "%s: no time for %s rows", path, key));
    }
    js_destroy(&doc);
    mem_free(&text);
}

/* Seconds of one expert with n_rows rows, interpolated between the measured numbers of rows. */
static double expert_s(const struct run *r, double n_rows)
{
    if (n_rows == 0) return 0;
    int i = 0;
    while (i + 2 < TIMES && n_rows > 1 << (i + 1)) i++;
    const double x0 = 1 << i, slope = (r->expert_s[i + 1] - r->expert_s[i]) / x0;
    return (r->expert_s[i] + (n_rows - x0) * slope) / r->parts;
}

/* Compute seconds of a layer on this host: its experts, and the shared one for its own tokens. */
static double layer_s(const struct run *r)
{
    const struct range held = layout_experts(r->layout, r->host);
    double s = expert_s(r, r->n_rows);
    for (uint32_t e = held.begin; e < held.end; e++) s += expert_s(r, r->rows_of[e]);
    return s;
}

/* --- routing ---------------------------------------------------------------------------------- */

static uint32_t next(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % n;
}

/* K different experts of CHOSEN different groups, at random. */
static void choose_experts(uint64_t *state, uint32_t experts[K])
{
    bool open[GROUPS] = {false}, taken[E] = {false};
    for (uint32_t n = 0; n < CHOSEN;) {
        const uint32_t g = next(state, GROUPS);
        n += !open[g];
        open[g] = true;
    }
    for (uint32_t k = 0; k < K;) {
        const uint32_t e = next(state, E);
        if (!open[e / (E / GROUPS)] || taken[e]) continue;
        taken[e] = true;
        experts[k++] = e;
    }
}

static uint32_t host_of(const struct run *r, uint32_t expert)
{
    return expert / (E / r->n_hosts);
}

/* Every rank draws the tokens of all hosts, instead of reading counts in messages. */
static void route(struct run *r, uint32_t layer)
{
    memset(r->to, 0, sizeof r->to);
    memset(r->choices, 0, sizeof r->choices);
    memset(r->rows_of, 0, sizeof r->rows_of);
    for (uint32_t from = 0; from < r->n_hosts; from++) {
        uint64_t state = 1 + 7919ull * layer + 104729ull * from;
        for (uint32_t t = 0; t < r->n_rows; t++) {
            uint32_t experts[K];
            bool goes[HOSTS_MAX] = {false};
            choose_experts(&state, experts);
            for (int k = 0; k < K; k++) {
                const uint32_t h = host_of(r, experts[k]);
                r->rows_of[experts[k]]++;
                r->choices[from][h]++;
                r->to[from][h] += !goes[h];
                goes[h] = true;
            }
        }
    }
}

/* --- the exchange between hosts --------------------------------------------------------------- */

/* Sends n_bytes[host] to each host, all from one piece of memory, because no host reads them. */
static void mail(struct run *r, enum comm_lane lane, const size_t *n_bytes)
{
    struct comm_mail_piece pieces[HOSTS_MAX];
    const size_t head = comm_mail_head_bytes(r->mail, 1);
    size_t most = 0, sent;
    for (uint32_t h = 0; h < r->n_hosts; h++) {
        pieces[h] = (struct comm_mail_piece){head, n_bytes[h]};
        if (n_bytes[h] > most) most = n_bytes[h];
    }
    comm_mail_memory(r->mail, lane, head + most);
    comm_mail_start(r->comm, r->mail, lane, pieces, 1);
    comm_mail_finish(r->comm, r->mail, &sent);
}

static void layer_new(struct run *r, double compute_s)
{
    const struct token_format format = {D, CODES};
    const size_t n_blocks = (D + 1 + WIRE_INTS_BLOCK - 1) / WIRE_INTS_BLOCK;
    const size_t row_bytes = (D + 1) * sizeof(int32_t) + n_blocks;
    size_t there[HOSTS_MAX], back[HOSTS_MAX];
    for (uint32_t h = 0; h < r->n_hosts; h++) {
        const size_t n = r->to[r->host][h], came = r->to[h][r->host];
        there[h] = token_block_at(&format, n, r->choices[r->host][h], NULL).n_bytes;
        back[h] = (result_head_bytes(came) + came * row_bytes + LINE - 1) / LINE * LINE;
    }
    mail(r, COMM_LANE_ROWS_OUT, there);
    smpi_execute(compute_s);
    mail(r, COMM_LANE_ROWS_BACK, back);
}

/* --- the older exchange ----------------------------------------------------------------------- */

/* Sends one row for each choice to the expert's host or, with `back`, one row back. */
static void all_to_all(struct run *r, size_t row_words, bool back, char *memory)
{
    int send[HOSTS_MAX], recv[HOSTS_MAX], send_at[HOSTS_MAX], recv_at[HOSTS_MAX];
    int n_sent = 0, n_received = 0;
    for (uint32_t h = 0; h < r->n_hosts; h++) {
        const int out = (int)r->choices[r->host][h], in = (int)r->choices[h][r->host];
        send[h] = back ? in : out;
        recv[h] = back ? out : in;
        send_at[h] = n_sent;
        recv_at[h] = n_received;
        n_sent += send[h];
        n_received += recv[h];
    }
    const struct comm_exchange x = {.row_words = row_words,
                                    .send = memory,
                                    .send_counts = send,
                                    .send_displs = send_at,
                                    .recv = memory,
                                    .recv_counts = recv,
                                    .recv_displs = recv_at};
    comm_exchange_rows(r->comm, COMM_EP, &x);
}

static void layer_old(struct run *r, double compute_s, char *memory)
{
    const size_t n = E / r->n_hosts;
    int32_t counts[E] = {0}, theirs[E];
    comm_exchange_i32(r->comm, COMM_EP, counts, theirs, n);
    all_to_all(r, D, false, memory);
    smpi_execute(compute_s);
    all_to_all(r, D + 1, true, memory);
}

/* --- all ---------------------------------------------------------------------------------------
 */

/* Returns a layer's compute seconds with rows spread evenly over all experts. *wire_s: the seconds
 * of its bytes on a link at its full rate, without latency. */
static double law_s(const struct run *r, double *wire_s)
{
    const struct wire_shape shape = {.format = {D, CODES},
                                     .n_experts = E,
                                     .n_chosen = K,
                                     .router = {.n_groups = GROUPS, .n_groups_chosen = CHOSEN},
                                     .n_hosts = r->n_hosts};
    const struct wire_bytes w = wire_bytes_of(&shape);
    const double each = (double)r->n_rows * r->n_hosts * K / E, held = (double)E / r->n_hosts;
    *wire_s = r->n_rows * (w.dispatch + w.combine) / link_bytes_s;
    return expert_s(r, r->n_rows) + held * expert_s(r, each);
}

static double run_layers(struct run *r, bool is_new)
{
    /* room for the most rows that a host may send or receive; one piece of memory for all ranks */
    const size_t n = 4 * (size_t)r->n_rows * K * (D + 1) * sizeof(float);
    char *memory = is_new ? NULL : SMPI_SHARED_MALLOC(n);
    double all_s = 0;
    for (uint32_t layer = 0; layer < r->n_layers; layer++) {
        route(r, layer);
        const double compute_s = layer_s(r);
        r->compute_s += compute_s;
        comm_barrier(r->comm, COMM_WORLD);
        const double since = MPI_Wtime();
        if (is_new) layer_new(r, compute_s);
        if (!is_new) layer_old(r, compute_s, memory);
        comm_barrier(r->comm, COMM_WORLD);
        all_s += MPI_Wtime() - since;
    }
    if (memory != NULL) SMPI_SHARED_FREE(memory);
    return all_s / r->n_layers;
}

static void open_run(struct run *r, struct layout *l, struct arch *arch)
{
    struct topo *topo = NULL;
    uint32_t *order = NULL;
    must(comm_start(NULL, NULL, &r->comm));
    must(comm_gather_topo(r->comm, &topo));
    r->n_hosts = topo->n_ranks;
    if (r->n_hosts > HOSTS_MAX || E % r->n_hosts != 0 || topo->n_nodes != r->n_hosts)
        must(status_make(STATUS_USAGE, "%u ranks on %u hosts: expected one each, a divisor of %d",
                         r->n_hosts, topo->n_nodes, E));
    *arch = (struct arch){.family = arch_family_at(0),
                          .n_layers = 1,
                          .width = D,
                          .attn.n_heads = 8,
                          .attn.n_kv_heads = 8,
                          .attn.head_dim = 64,
                          .attn.query_dim = 64,
                          .attn.value_dim = 64,
                          .moe.n_experts = E,
                          .moe.n_chosen = K,
                          .moe.ffn = 2048,
                          .vocab = 64,
                          .context = 64,
                          .layer.is_moe = {true}};
    const struct layout_model model = {
        .name = "layer", .arch = arch, .o_leaf = 64, .expert_leaf = 256, .weight_bytes = 1};
    const struct layout_flags flags = {.tp = 1, .pp = 1, .dp = r->n_hosts, .ep = r->n_hosts};
    must(layout_build(&model, r->n_hosts, &flags, l));
    must(mem_alloc(&order, r->n_hosts, sizeof *order, "ranks"));
    for (uint32_t i = 0; i < r->n_hosts; i++) order[i] = i;
    must(comm_split(r->comm, l, order));
    must(comm_mail_open(r->comm, COMM_EP, 0, &r->mail));
    r->host = (uint32_t)comm_rank(r->comm, COMM_EP);
    r->layout = l;
    mem_free(&order);
    topo_destroy(&topo);
}

int main(int argc, char **argv)
{
    struct run *r = NULL;
    struct layout *l = NULL;
    static struct arch arch;
    double wire_s;
    if (argc != 6) return 2;
    must(mem_alloc(&r, 1, sizeof *r, "run"));
    must(mem_alloc(&l, 1, sizeof *l, "layout"));
    open_run(r, l, &arch);
    read_times(argv[1], r);
    r->parts = atof(argv[2]);
    r->n_rows = (uint32_t)atoi(argv[3]);
    r->n_layers = (uint32_t)atoi(argv[4]);
    const bool is_new = strcmp(argv[5], "new") == 0;
    const double seconds = run_layers(r, is_new), compute_s = law_s(r, &wire_s);
    if (r->host == 0)
        printf("{\"hosts\": %u, \"exchange\": \"%s\", \"layer_s\": %.6g, \"law_compute_s\": %.6g, "
               "\"law_wire_s\": %.6g}\n",
               r->n_hosts, argv[5], seconds, compute_s, wire_s);
    comm_mail_close(&r->mail);
    comm_stop(&r->comm);
    mem_free(&l);
    mem_free(&r);
    return 0;
}
