/* A rank of MPI, told what to measure over a socket. It waits for a line in read(), so that it uses no processor meanwhile. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int rank, ranks;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

struct kind {
    const char *name;
    MPI_Datatype type;
    size_t size;
};

static double pattern(uint64_t of, uint64_t at) { return (double)((at * 7 + of * 5) % (ranks <= 12 ? 11 : 2)); }

static void put(const struct kind *kind, void *to, size_t at, double value) {
    if (!strcmp(kind->name, "f32")) ((float *)to)[at] = (float)value;
    else if (!strcmp(kind->name, "f64")) ((double *)to)[at] = value;
    else if (!strcmp(kind->name, "i8")) ((int8_t *)to)[at] = (int8_t)value;
    else if (!strcmp(kind->name, "u8")) ((uint8_t *)to)[at] = (uint8_t)value;
    else if (!strcmp(kind->name, "i32")) ((int32_t *)to)[at] = (int32_t)value;
    else if (!strcmp(kind->name, "u32")) ((uint32_t *)to)[at] = (uint32_t)value;
    else if (!strcmp(kind->name, "i64")) ((int64_t *)to)[at] = (int64_t)value;
    else ((uint64_t *)to)[at] = (uint64_t)value;
}

static double get(const struct kind *kind, const void *from, size_t at) {
    if (!strcmp(kind->name, "f32")) return ((const float *)from)[at];
    if (!strcmp(kind->name, "f64")) return ((const double *)from)[at];
    if (!strcmp(kind->name, "i8")) return ((const int8_t *)from)[at];
    if (!strcmp(kind->name, "u8")) return ((const uint8_t *)from)[at];
    if (!strcmp(kind->name, "i32")) return ((const int32_t *)from)[at];
    if (!strcmp(kind->name, "u32")) return ((const uint32_t *)from)[at];
    if (!strcmp(kind->name, "i64")) return (double)((const int64_t *)from)[at];
    return (double)((const uint64_t *)from)[at];
}

static void call(const char *op, const struct kind *kind, void *a, void *b, int n) {
    MPI_Comm all = MPI_COMM_WORLD;
    MPI_Datatype t = kind->type;
    if (!strcmp(op, "all_reduce")) MPI_Allreduce(MPI_IN_PLACE, a, n, t, MPI_SUM, all);
    else if (!strcmp(op, "all_gather")) MPI_Allgather(a, n, t, b, n, t, all);
    else if (!strcmp(op, "reduce_scatter")) MPI_Reduce_scatter_block(a, b, n, t, MPI_SUM, all);
    else if (!strcmp(op, "all_to_all")) MPI_Alltoall(a, n, t, b, n, t, all);
    else if (!strcmp(op, "broadcast")) MPI_Bcast(a, n, t, 0, all);
    else if (!strcmp(op, "reduce")) MPI_Reduce(a, b, n, t, MPI_SUM, 0, all);
    else if (!strcmp(op, "gather")) MPI_Gather(a, n, t, b, n, t, 0, all);
    else if (!strcmp(op, "scatter")) MPI_Scatter(a, n, t, b, n, t, 0, all);
    else MPI_Sendrecv(a, n, t, (rank + 1) % ranks, 0, b, n, t, (rank + ranks - 1) % ranks, 0, all, MPI_STATUS_IGNORE);
}

static double wanted(const char *op, uint64_t n, uint64_t at) {
    double sum = 0;
    uint64_t from = !strcmp(op, "reduce_scatter") ? (uint64_t)rank * n + at : at;
    for (int r = 0; r < ranks; r++) sum += pattern((uint64_t)r, from);
    if (!strcmp(op, "all_reduce") || !strcmp(op, "reduce") || !strcmp(op, "reduce_scatter")) return sum;
    if (!strcmp(op, "all_gather") || !strcmp(op, "gather")) return pattern(at / n, at % n);
    if (!strcmp(op, "all_to_all")) return pattern(at / n, (uint64_t)rank * n + at % n);
    if (!strcmp(op, "broadcast")) return pattern(0, at);
    if (!strcmp(op, "scatter")) return pattern(0, (uint64_t)rank * n + at);
    return pattern((uint64_t)((rank + ranks - 1) % ranks), at);
}

static void measure(FILE *to, char *line) {
    const struct kind kinds[] = {
        {"f32", MPI_FLOAT, 4},    {"f64", MPI_DOUBLE, 8},    {"i8", MPI_INT8_T, 1},   {"u8", MPI_UINT8_T, 1},
        {"i32", MPI_INT32_T, 4},  {"u32", MPI_UINT32_T, 4},  {"i64", MPI_INT64_T, 8}, {"u64", MPI_UINT64_T, 8},
    };
    char op[32], type[16];
    unsigned long long bytes;
    int warmup, samples, calls;
    if (sscanf(line, "measure %31s %15s %llu %d %d %d", op, type, &bytes, &warmup, &samples, &calls) != 6) {
        fprintf(to, "no such order\n");
        return;
    }
    const struct kind *kind = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, type)) kind = &kinds[i];
    if (!kind) {
        fprintf(to, "no type %s\n", type);
        return;
    }
    int has_no_parts = !strcmp(op, "all_reduce") || !strcmp(op, "broadcast") || !strcmp(op, "reduce") || !strcmp(op, "exchange");
    uint64_t numbers = bytes / kind->size, n = has_no_parts ? numbers : numbers / (uint64_t)ranks;
    uint64_t whole = has_no_parts ? n : n * (uint64_t)ranks;
    if (n > 2147483647ull) {
        fprintf(to, "no count above 2147483647\n");
        return;
    }
    char *a = malloc(whole * kind->size + 1), *b = malloc(whole * kind->size + 1);
    if (!a || !b) {
        fprintf(to, "no memory\n");
        free(a), free(b);
        return;
    }
    memset(a, 0, whole * kind->size);
    memset(b, 0, whole * kind->size);
    for (int i = 0; i < warmup; i++) call(op, kind, a, b, (int)n);
    uint64_t *times = calloc((size_t)samples + 1, sizeof *times);
    for (int s = 0; s < samples; s++) {
        MPI_Barrier(MPI_COMM_WORLD);
        uint64_t began = now();
        for (int i = 0; i < calls; i++) call(op, kind, a, b, (int)n);
        times[s] = (now() - began) / (uint64_t)calls;
    }
    for (uint64_t at = 0; at < whole; at++) put(kind, a, at, pattern((uint64_t)rank, at));
    call(op, kind, a, b, (int)n);
    int is_in_place = !strcmp(op, "all_reduce") || !strcmp(op, "broadcast");
    int is_rooted = !strcmp(op, "reduce") || !strcmp(op, "gather");
    int is_part = !strcmp(op, "reduce_scatter") || !strcmp(op, "scatter");
    unsigned long long wrong = 0;
    if (!is_rooted || rank == 0)
        for (uint64_t at = 0; at < (is_part ? n : whole); at++)
            wrong += get(kind, is_in_place ? a : b, at) != wanted(op, n, at);
    MPI_Barrier(MPI_COMM_WORLD);
    fprintf(to, "ok openmpi %llu", wrong);
    for (int s = 0; s < samples; s++) fprintf(to, " %llu", (unsigned long long)times[s]);
    fprintf(to, "\n");
    free(a), free(b), free(times);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int link = socket(AF_UNIX, SOCK_STREAM, 0);
    if (argc < 2 || strlen(argv[1]) >= sizeof address.sun_path) return 2;
    strcpy(address.sun_path, argv[1]);
    if (link < 0 || connect(link, (struct sockaddr *)&address, sizeof address)) {
        perror("connect");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    FILE *to = fdopen(link, "w"), *from = fdopen(dup(link), "r");
    fprintf(to, "rank %d %d\nready\n", rank, (int)getpid());
    fflush(to);
    char line[256];
    while (fgets(line, sizeof line, from)) {
        measure(to, line);
        fflush(to);
    }
    MPI_Finalize();
    return 0;
}
