/* The entry point of shoal: one binary, one table of subcommands. */
#include "checkpoint/file/ckpt.h"
#include "cli/cmd.h"
#include "kernels/device.h"
#include "options/flags.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

struct command {
    const char *name;
    int (*run)(struct config env, int argc, char **argv);
    const char *arguments, *summary;
};

static const struct command commands[] = {
    {"convert", cmd_convert, "SRC DST.h5",
     "make a checkpoint from a Hugging Face folder or a GGUF file"},
    {"inspect", cmd_inspect, "FILE.h5", "show what a checkpoint holds; --verify its checksums"},
    {"quantize", cmd_quantize, "SRC.h5 DST.h5 --format F",
     "make a checkpoint with quantized weights"},
    {"pack", cmd_pack, "MODEL.h5", "pack experts for jobs that stream them from disk"},
    {"plan", cmd_plan, "--model FILE", "show topology, layout and memory without running"},
    {"generate", cmd_generate, "--model M.h5 --input IN.jsonl --output OUT.jsonl",
     "offline bulk generation, the main job"},
    {"score", cmd_score, "--model M.h5 --input IN.jsonl --output OUT.jsonl",
     "log-probabilities of given texts, perplexity"},
    {"embed", cmd_embed, "--model M.h5 --input IN.jsonl --output OUT.jsonl",
     "vectors of given texts, by an embedding model"},
    {"rank", cmd_rank, "--model M.h5 --input IN.jsonl --output OUT.jsonl",
     "scores of documents for a query, or of texts"},
    {"serve", cmd_serve, "--model M.h5", "answer requests over HTTP while the allocation lasts"},
    {"bench", cmd_bench, "--machine | --model M.h5",
     "measure the machine, and latency and throughput on it"},
    {"diagnose", cmd_diagnose, "[FLAGS]",
     "find what on these hosts would make a job slow, and its remedy"},
    {"status", cmd_status, "JOURNAL...", "how far a job is, while it runs and after"},
    {"receipt", cmd_receipt, "OUT.jsonl", "which job made an output, to compare runs"},
    {"merge", cmd_merge, "--input IN.jsonl --output OUT.jsonl PART...",
     "join the outputs of a job array, proving that no row is missing or double"},
};

static void print_help(FILE *out)
{
    fprintf(out,
            "shoal %s: language models on MPI clusters, the same bytes in every layout\n\n"
            "usage: [mpirun -n N] shoal COMMAND ...\n\n",
            SHOAL_VERSION);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].summary);
    }
    fprintf(out, "\n`shoal COMMAND --help` lists a command's flags.\n");
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(name, commands[i].name) == 0) return &commands[i];
    return NULL;
}

/* Turns `shoal help COMMAND` into `shoal COMMAND --help`. */
static void turn_help_round(int argc, char **argv)
{
    static char help[] = "--help";
    if (argc < 3 || strcmp(argv[1], "help") != 0 || find_command(argv[2]) == NULL) return;
    argv[1] = argv[2];
    argv[2] = help;
}

/* Opens /dev/null in place of closed standard streams; otherwise the next opened file would get
 * that descriptor and receive the printed text. Each is opened in the wrong direction, so that
 * reading or printing fails. */
static void hold_streams(void)
{
    static const int WRONG_WAY[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)!open("/dev/null", WRONG_WAY[fd]);
}

/* Returns `status`, or the status of an error if the output did not reach stdout. */
static int close_stdout(int status)
{
    const bool is_out = fflush(stdout) == 0 && !ferror(stdout);
    if (is_out || status != 0) return status;
    fprintf(stderr, "shoal: stdout: writing failed: %s\n", strerror(errno));
    return status_exit(STATUS_IO);
}

static int run_command(int argc, char **argv)
{
    turn_help_round(argc, argv);
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    const bool is_help = strcmp(argv[1], "help") == 0;
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || (is_help && argc == 2)) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("shoal %s (backends: %s)\n", SHOAL_VERSION, device_backends());
        return 0;
    }
    const char *name = is_help ? argv[2] : argv[1]; /* help for an unknown command */
    const struct command *command = find_command(name);
    struct config env;
    struct status st = config_read(&env);
    if (command == NULL) {
        st = status_make(STATUS_USAGE, "no command is named \"%s\"; see shoal --help", name);
    }
    if (status_failed(&st)) return flags_refuse(name, env.launcher_rank, &st);
    return command->run(env, argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    hold_streams();
    signal(SIGXFSZ, SIG_IGN); /* a file at its size limit is a write error, like a full disk */
    ckpt_before_mpi();
    return close_stdout(run_command(argc, argv));
}
