/* Writes to a disk with libiscsi, and reads and compares the data. The argument is the disk's URL. The data go to the
   standard output too. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>

#define CHECK(condition)                                                                            \
	do {                                                                                        \
		if (!(condition)) {                                                                 \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, iscsi_get_error(iscsi)); \
			exit(1);                                                                    \
		}                                                                                   \
	} while (0)

enum { BLOCK_SIZE = 512, BLOCKS = 256, REQUESTS = 8 };

int main(int argc, char **argv)
{
	struct iscsi_context *iscsi = iscsi_create_context("iqn.2026-01.test:client");
	static unsigned char data[BLOCKS * BLOCK_SIZE];
	struct iscsi_url *url;
	struct scsi_task *task;
	uint32_t random = 1, lba;
	size_t i;

	if (!iscsi || argc != 2)
		return 1;
	CHECK(url = iscsi_parse_full_url(iscsi, argv[1]));
	CHECK(iscsi_init_transport(iscsi, url->transport) == 0);
	CHECK(iscsi_set_targetname(iscsi, url->target) == 0);
	CHECK(iscsi_set_session_type(iscsi, ISCSI_SESSION_NORMAL) == 0);
	CHECK(iscsi_full_connect_sync(iscsi, url->portal, url->lun) == 0);
	for (lba = 0; lba < REQUESTS * BLOCKS; lba += BLOCKS) {
		for (i = 0; i < sizeof(data); i++) {
			random = random * 1664525 + 1013904223;
			data[i] = random >> 24;
		}
		task = iscsi_write10_sync(iscsi, url->lun, lba, data, sizeof(data), BLOCK_SIZE, 0, 0, 0, 0, 0);
		CHECK(task && task->status == SCSI_STATUS_GOOD);
		scsi_free_scsi_task(task);
		task = iscsi_read10_sync(iscsi, url->lun, lba, sizeof(data), BLOCK_SIZE, 0, 0, 0, 0, 0);
		CHECK(task && task->status == SCSI_STATUS_GOOD && task->datain.size == (int)sizeof(data));
		CHECK(memcmp(task->datain.data, data, sizeof(data)) == 0);
		scsi_free_scsi_task(task);
		CHECK(fwrite(data, sizeof(data), 1, stdout) == 1);
	}
	CHECK(iscsi_logout_sync(iscsi) == 0);
	iscsi_destroy_url(url);
	iscsi_destroy_context(iscsi);
	return 0;
}
