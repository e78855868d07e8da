/* How fast all cores together read memory: THREADS BUFFER_BYTES SECONDS -> bytes a second on stdout.
 *
 * The buffer is split between the threads; each sums its part again and again. Eight accumulators keep enough loads in
 * flight, and the sums are printed to stderr so that no compiler drops the reads. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LANES = 8 };

typedef struct {
    const uint64_t *words;
    size_t num_words;
    double seconds;
    double bytes_read;
    double seconds_taken;
    uint64_t sum;
    pthread_barrier_t *start;
} Reader;

static double now_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static uint64_t sum_once(const uint64_t *words, size_t num_words) {
    uint64_t lanes[LANES * 4] = {0};
    for (size_t at = 0; at + LANES * 4 <= num_words; at += LANES * 4)
        for (size_t lane = 0; lane < LANES * 4; ++lane) lanes[lane] += words[at + lane];
    uint64_t sum = 0;
    for (size_t lane = 0; lane < LANES * 4; ++lane) sum += lanes[lane];
    return sum;
}

static void *read_again_and_again(void *argument) {
    Reader *reader = argument;
    reader->sum = sum_once(reader->words, reader->num_words); /* faults pages in, fills caches */
    pthread_barrier_wait(reader->start);
    const double started = now_seconds();
    do {
        reader->sum += sum_once(reader->words, reader->num_words);
        reader->bytes_read += 8.0 * (double)reader->num_words;
        reader->seconds_taken = now_seconds() - started;
    } while (reader->seconds_taken < reader->seconds);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s THREADS BUFFER_BYTES SECONDS\n", argv[0]);
        return 2;
    }
    const size_t num_threads = strtoul(argv[1], NULL, 10), num_words = strtoull(argv[2], NULL, 10) / 8;
    uint64_t *words = NULL;
    if (num_threads == 0 || posix_memalign((void **)&words, 4096, num_words * 8 + 4096)) return 1;
    memset(words, 1, num_words * 8);
    Reader *readers = calloc(num_threads, sizeof *readers);
    pthread_t *threads = calloc(num_threads, sizeof *threads);
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)num_threads);
    const size_t part = num_words / num_threads;
    for (size_t i = 0; i < num_threads; ++i) {
        readers[i] = (Reader){.words = words + i * part, .num_words = part, .seconds = atof(argv[3]), .start = &start};
        pthread_create(&threads[i], NULL, read_again_and_again, &readers[i]);
    }
    double bytes_per_second = 0;
    uint64_t sum = 0;
    for (size_t i = 0; i < num_threads; ++i) {
        pthread_join(threads[i], NULL);
        bytes_per_second += readers[i].bytes_read / readers[i].seconds_taken;
        sum += readers[i].sum;
    }
    printf("%.0f\n", bytes_per_second);
    fprintf(stderr, "%llu\n", (unsigned long long)sum);
    return 0;
}
