/* Cosine of two texts with sd-bus: one call of EmbedPacked, and the vectors as they lie in the reply.
 *
 *   cc -o embed embed.c $(pkg-config --cflags --libs libsystemd)
 *   ./embed "the disk is full" "no space left on device"
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <systemd/sd-bus.h>

#define NAME "org.opdbus.Embedding1"

static void failed(const char *what, int error) {
        fprintf(stderr, "%s: %s\n", what, strerror(-error));
}

/* The reply's vectors: row-major, 32-bit little-endian floating point numbers. They stay valid as long
 * as the reply. Returns a negative errno. */
static int read_vectors(sd_bus_message *reply, const float **vectors, uint32_t *rows, uint32_t *dimensions) {
        size_t size;
        const void *bytes;
        int error = sd_bus_message_read_array(reply, 'y', &bytes, &size);
        if (error < 0)
                return error;
        error = sd_bus_message_read(reply, "uu", rows, dimensions);
        if (error < 0)
                return error;
        if (size != (size_t) *rows * *dimensions * sizeof(float))
                return -EBADMSG;
        *vectors = bytes;
        return 0;
}

int main(int argc, char **argv) {
        sd_bus *bus = NULL;
        sd_bus_message *reply = NULL;
        sd_bus_error refusal = SD_BUS_ERROR_NULL;
        const float *vectors;
        uint32_t rows, dimensions;
        double cosine = 0;
        int error, code = 1;

        if (argc != 3) {
                fprintf(stderr, "usage: %s TEXT TEXT\n", argv[0]);
                return 2;
        }
        error = sd_bus_open_system(&bus);
        if (error < 0) {
                failed("no system bus", error);
                goto end;
        }
        /* Two texts; one option, normalize. */
        error = sd_bus_call_method(bus, NAME, "/org/opdbus/Embedding1", NAME ".Embedder", "EmbedPacked",
                                   &refusal, &reply, "asa{sv}",
                                   2, argv[1], argv[2], 1, "normalize", "b", 1);
        if (error < 0) {
                fprintf(stderr, "%s: %s\n", refusal.name, refusal.message);
                goto end;
        }
        error = read_vectors(reply, &vectors, &rows, &dimensions);
        if (error < 0 || rows != 2) {
                failed("an unexpected reply", error < 0 ? error : -EBADMSG);
                goto end;
        }

        for (uint32_t i = 0; i < dimensions; i++)
                cosine += (double) vectors[i] * vectors[dimensions + i];
        printf("%.2f\n", cosine);
        code = 0;

end:
        sd_bus_error_free(&refusal);
        sd_bus_message_unref(reply);
        sd_bus_flush_close_unref(bus);
        return code;
}
