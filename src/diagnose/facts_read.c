/* Reads a host's facts from the files of Linux below /proc, /sys and /dev. Judges nothing. */
#include "diagnose/facts.h"

#include "base/mem.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

enum { PATH_BYTES = 512, LINE_BYTES = 256, TABLE_BYTES_MAX = 1 << 20, KIB = 1024 };

/* A folder below `root`, and the entry in it that is read. */
struct place {
    const char *root, *folder, *entry;
};

/* Reads the first line of a file in a place, without its line end; false if there is none. */
static bool read_line(const struct place *p, const char *file, char line[LINE_BYTES])
{
    char path[PATH_BYTES];
    const int n = snprintf(path, sizeof path, "%s%s/%s/%s", p->root, p->folder, p->entry, file);
    FILE *f = n < (int)sizeof path ? fopen(path, "re") : NULL;
    const bool found = f != NULL && fgets(line, LINE_BYTES, f) != NULL;
    if (f != NULL) fclose(f);
    if (found) line[strcspn(line, "\n")] = '\0';
    return found;
}

static uint64_t read_number(const struct place *p, const char *file)
{
    char line[LINE_BYTES];
    return read_line(p, file, line) && line[0] != '-' ? strtoull(line, NULL, 10) : 0;
}

/* Calls `each` for every entry of a folder below `root` whose name begins with `prefix`. */
static void for_entries(const char *root, const char *folder, const char *prefix,
                        void (*each)(const struct place *, struct facts_system *),
                        struct facts_system *out)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s%s", root, folder);
    DIR *dir = opendir(path);
    if (dir == NULL) return;
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        const struct place p = {root, folder, entry->d_name};
        if (entry->d_name[0] != '.' && strncmp(entry->d_name, prefix, strlen(prefix)) == 0)
            each(&p, out);
    }
    closedir(dir);
}

/* Returns the bytes of a line "Name:   123 kB" in a file like /proc/meminfo; 0 if it has none.
 * `name` is the last word before the colon. */
static uint64_t kib_line(const char *path, const char *name)
{
    FILE *f = fopen(path, "re");
    char line[LINE_BYTES];
    uint64_t n = 0;
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char *colon = strchr(line, ':');
        if (colon == NULL) continue;
        *colon = '\0';
        const char *word = strrchr(line, ' ');
        if (strcmp(word != NULL ? word + 1 : line, name) != 0) continue;
        n = strtoull(colon + 1, NULL, 10) * KIB;
        break;
    }
    if (f != NULL) fclose(f);
    return n;
}

static void read_memory(const char *root, struct facts_system *out)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    out->memory_bytes = kib_line(path, "MemTotal");
    const uint64_t swap = kib_line(path, "SwapTotal"), free = kib_line(path, "SwapFree");
    out->swap_used_bytes = swap > free ? swap - free : 0;
}

static void read_numa(const struct place *p, struct facts_system *out)
{
    char path[PATH_BYTES];
    char *end;
    const unsigned long i = strtoul(p->entry + strlen("node"), &end, 10);
    if (end == p->entry + strlen("node") || *end != '\0' || i >= FACTS_NUMA_MAX) return;
    snprintf(path, sizeof path, "%s%s/%s/meminfo", p->root, p->folder, p->entry);
    out->numa_bytes[i] = kib_line(path, "MemTotal");
    out->numa_free_bytes[i] = kib_line(path, "MemFree") + kib_line(path, "FilePages");
    if (out->n_numa <= i) out->n_numa = (uint32_t)i + 1;
}

/* Reads the word in brackets: "always [madvise] never". */
static enum facts_pages read_pages(const char *root)
{
    const struct place p = {root, "/sys/kernel/mm", "transparent_hugepage"};
    char line[LINE_BYTES];
    if (!read_line(&p, "enabled", line)) return PAGES_UNKNOWN;
    return strstr(line, "[always]") != NULL    ? PAGES_ALWAYS
           : strstr(line, "[madvise]") != NULL ? PAGES_MADVISE
           : strstr(line, "[never]") != NULL   ? PAGES_NEVER
                                               : PAGES_UNKNOWN;
}

static void read_frequency(const char *root, struct facts_system *out)
{
    const struct place p = {root, "/sys/devices/system/cpu/cpu0", "cpufreq"};
    char line[LINE_BYTES];
    if (read_line(&p, "scaling_governor", line))
        snprintf(out->governor, sizeof out->governor, "%.60s", line);
    if (read_line(&p, "scaling_driver", line))
        snprintf(out->driver, sizeof out->driver, "%.60s", line);
}

/* Reads the first port of a device of /sys/class/infiniband. The rate looks like "100 Gb/sec (4X
 * EDR)". */
static void read_port(const struct place *p, struct facts_system *out)
{
    char line[LINE_BYTES];
    if (out->n_ports == FACTS_PORTS_MAX) return;
    struct facts_port *port = &out->ports[out->n_ports++];
    snprintf(port->name, sizeof port->name, "%.60s", p->entry);
    port->gbit = (uint32_t)read_number(p, "ports/1/rate");
    port->is_active = read_line(p, "ports/1/state", line) && strstr(line, "ACTIVE") != NULL;
}

static void read_ethernet(const struct place *p, struct facts_system *out)
{
    char line[LINE_BYTES];
    if (!read_line(p, "operstate", line) || strcmp(line, "up") != 0) return;
    const uint64_t mbit = read_number(p, "speed");
    if (mbit < UINT32_MAX && mbit > out->ethernet_mbit) out->ethernet_mbit = (uint32_t)mbit;
}

static void count_gpu_file(const struct place *p, struct facts_system *out)
{
    const char *number = p->entry + strlen("nvidia");
    out->n_gpu_files += *number != '\0' && strspn(number, "0123456789") == strlen(number);
}

static void read_shm(const char *root, struct facts_system *out)
{
    char path[PATH_BYTES];
    struct statvfs v;
    snprintf(path, sizeof path, "%s/dev/shm", root);
    if (statvfs(path, &v) != 0) return;
    out->shm_bytes = (uint64_t)v.f_blocks * v.f_frsize;
    out->shm_free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
}

static void read_modules(const char *root, struct facts_system *out)
{
    char path[PATH_BYTES];
    uint8_t *table = NULL;
    snprintf(path, sizeof path, "%s/sys/firmware/dmi/tables/DMI", root);
    FILE *f = fopen(path, "re"); /* only root may read it on most systems */
    struct status st = status_ok();
    if (f != NULL) st = mem_alloc(&table, TABLE_BYTES_MAX, 1, "table of memory modules");
    if (f != NULL && !status_failed(&st))
        facts_read_modules(table, fread(table, 1, TABLE_BYTES_MAX, f), out);
    if (f != NULL) fclose(f);
    mem_free(&table);
}

void facts_read_system(const char *root, struct facts_system *out)
{
    struct rlimit locked;
    memset(out, 0, sizeof *out);
    read_memory(root, out);
    for_entries(root, "/sys/devices/system/node", "node", read_numa, out);
    out->pages = read_pages(root);
    read_frequency(root, out);
    read_shm(root, out);
    read_modules(root, out);
    for_entries(root, "/sys/class/infiniband", "", read_port, out);
    for_entries(root, "/sys/class/net", "", read_ethernet, out);
    for_entries(root, "/dev", "nvidia", count_gpu_file, out);
    if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0)
        out->locked_bytes_max = locked.rlim_cur == RLIM_INFINITY ? UINT64_MAX : locked.rlim_cur;
}

/* --- memory modules ------------------------------------------------------------------------- */

enum { /* fields of an SMBIOS structure */
       MODULE_TYPE = 17,
       HEADER_BYTES = 4,
       AT_SIZE = 0x0C,  /* 16 bits; 0: an empty socket, 0xFFFF: not known */
       AT_SPEED = 0x15, /* this and the next: millions of transfers a second */
       AT_CONFIGURED = 0x20,
       TRANSFER_BYTES = 8,
};

static uint32_t word_at(const uint8_t *structure, size_t at)
{
    const bool has = structure[1] >= at + 2;
    return has ? (uint32_t)structure[at] | (uint32_t)structure[at + 1] << 8 : 0;
}

/* Returns the position after the strings of a structure, which end with two zero bytes. */
static size_t after_strings(const uint8_t *table, size_t at, size_t n_bytes)
{
    while (at + 1 < n_bytes && (table[at] != 0 || table[at + 1] != 0)) at++;
    return at + 2;
}

void facts_read_modules(const uint8_t *table, size_t n_bytes, struct facts_system *out)
{
    for (size_t at = 0; at + HEADER_BYTES <= n_bytes;) {
        const uint8_t *s = table + at;
        if (s[1] < HEADER_BYTES || s[1] > n_bytes - at) return;
        const uint32_t size = word_at(s, AT_SIZE), configured = word_at(s, AT_CONFIGURED);
        const uint32_t rate = configured != 0 ? configured : word_at(s, AT_SPEED);
        if (s[0] == MODULE_TYPE && size != 0 && size != UINT16_MAX) {
            out->n_modules++;
            out->modules_gbs += (double)rate * TRANSFER_BYTES / 1000;
        }
        at = after_strings(table, at + s[1], n_bytes);
    }
}

void facts_first_ranks(const struct topo *t, uint32_t *first)
{
    for (uint32_t r = t->n_ranks; r-- > 0;) first[t->ranks[r].host] = r;
}
